// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {

void AddVersion(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "version", "Prints the version of this program",
                      "  holdfast version --json\n");
  verb.Then([=] {
    invocation->run = [=] {
      const bool written =
          PrintLine(invocation->json ? absl::StrCat("{\"version\":\"", HOLDFAST_VERSION, "\"}")
                                     : "holdfast " HOLDFAST_VERSION);
      return written ? kExitDone : kExitRefused;
    };
  });
}

}  // namespace holdfast::cli
