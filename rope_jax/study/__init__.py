"""What is asked (config), what is there (store), and how both are written."""
