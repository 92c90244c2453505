"""What spark-submit and EMR Serverless start: the freshq-pipeline command, from the packed environment."""

from freshq_pipeline.verdict import main

if __name__ == "__main__":
    main()
