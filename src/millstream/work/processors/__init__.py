"""What Spark's stateful processors are given, over keyed state; without Spark."""
