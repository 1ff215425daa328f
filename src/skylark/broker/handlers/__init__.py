"""What a broker answers, by family: functions and small classes that `routes.py` puts in one table."""
