"""An agent of one's own that a run trains.

    t1 run --preset smoke --set rollout.harness=command --set 'rollout.command="python examples/agents/shell_agent.py"'

It shows the model its task, runs each answer in the trial's sandbox, and shows what came of it, until the model says
"submit". Any client of OpenAI's API will do; exit status 0 says that the agent is done.
"""

import json
import os
import urllib.request

from openai import OpenAI

OBSERVATION_CHARS = 60


def run(command: str) -> str:
    """Run ``command`` in the trial's sandbox; what the model is shown of it."""
    token = f"Bearer {os.environ['OPENAI_API_KEY']}"
    request = urllib.request.Request(
        os.environ["T1_SANDBOX_URL"], json.dumps({"command": command}).encode(), {"Authorization": token}
    )
    with urllib.request.urlopen(request) as response:
        result = json.load(response)
    output = result["output"].strip("\n")
    shown = output if len(output) <= OBSERVATION_CHARS else output[:OBSERVATION_CHARS] + "..."
    return (shown + "\n" if shown else "") + f"rc {result['exit_code']}"


def main() -> None:
    client = OpenAI()  # base URL and key are in the environment
    with open(os.environ["T1_INSTRUCTION_FILE"]) as file:
        messages = [{"role": "user", "content": file.read().strip()}]
    while True:
        answer = client.chat.completions.create(model="t1", messages=messages).choices[0].message.content or ""
        if answer.strip() == "submit":
            return
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "tool", "tool_call_id": "shell", "content": run(answer)})


if __name__ == "__main__":
    main()
