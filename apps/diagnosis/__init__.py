"""What output means: milestones and progress, or a named reason with the line that proves it. Pure and incremental."""
