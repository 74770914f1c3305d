"""What every Kafka client of the project shares: names of topics, their creation and checks, words for failures."""
