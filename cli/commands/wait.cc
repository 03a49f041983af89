// SPDX-License-Identifier: Apache-2.0
#include "cli/wait.h"

#include "cli/commands/commands.h"
#include "cli/output.h"

namespace holdfast::cli {

void AddWait(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "wait",
                      "Returns when a job has ended: 0 DONE, 1 FAILED or CANCELLED",
                      "  holdfast wait j-42 && echo trained\n");
  auto job = std::make_shared<std::string>();
  verb.Positional("job", job.get(), "j-42 or a name");
  verb.Then([=] {
    invocation->run = [=] {
      InterruptGuard guard;
      auto client = OpenClient(*invocation);
      return client.ok() ? WaitAndReport(client->get(), &guard, *job, invocation->json)
                         : Fail(client.status());
    };
  });
}

}  // namespace holdfast::cli
