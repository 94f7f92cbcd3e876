"""What a server counts and logs of its answers, requests and engines. It only looks."""
