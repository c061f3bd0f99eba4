"""Plays the programs of a pod that must end: an agent and another process. Prints the result as JSON.

Arguments: the agent's command (JSON), the time limit, and a shell command that the agent runs; without that, no agent.
"""

import json
import subprocess
import sys


def left(within: str) -> dict[str, object]:
    words = [sys.executable, "-I", "-m", "hvd_elastic_ext.agent.prestop", "--within", within]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return {"leave": done.returncode, "said": done.stderr + done.stdout}


def main() -> int:
    command, within, *script = json.loads(sys.argv[1]), *sys.argv[2:]
    if not script:
        print(json.dumps(left(within)))
        return 0
    bystander = subprocess.Popen(["sleep", "1000"])
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert agent.stdin is not None
    assert agent.stdout is not None
    order = {"do": "start", "slot": 0, "argv": ["sh", "-c", *script], "grace_s": 60}
    agent.stdin.write(json.dumps(order) + "\n")
    agent.stdin.flush()
    said = ""
    for line in agent.stdout:
        said += line
        if "ready" in said:
            break
    outcome = left(within)
    if outcome["leave"] == 0:
        outcome |= {"agent": agent.wait(), "asked": '"asked' in agent.stdout.read()}
    else:
        outcome |= {"agent": agent.poll()}
    print(json.dumps(outcome | {"bystander": bystander.poll()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
