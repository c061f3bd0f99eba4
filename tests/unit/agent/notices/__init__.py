"""How clouds are asked whether they take this machine back."""
