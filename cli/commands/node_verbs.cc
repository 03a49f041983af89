// SPDX-License-Identifier: Apache-2.0
// drain, uncordon, confirm-dead: one call about one node each.
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

template <typename Request>
int ChangeNode(const Invocation& invocation, const std::string& what, Request request,
               grpc::Status (v1::Scheduler::Stub::*method)(grpc::ClientContext*, const Request&,
                                                           v1::NodeStatus*)) {
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  request.set_idempotency_key(proto::NewIdempotencyKey());
  auto node = (*client)->Call(absl::StrCat(what, " ", request.node()), method, request);
  if (!node.ok()) return Fail(node.status());
  if (invocation.json) return PrintLine(ToJson(*node)) ? kExitDone : kExitRefused;
  Hint(absl::StrCat(node->name(), " ", Short(node->state()), node->reason().empty() ? "" : ": ",
                    node->reason()));
  return kExitDone;
}

}  // namespace

void AddDrain(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "drain",
                      "Lets a node's jobs save and leave; places nothing new on it",
                      "  holdfast drain n3 --reason \"fan of gpu2\"\n");
  auto request = std::make_shared<v1::DrainNodeRequest>();
  auto node = std::make_shared<std::string>();
  auto reason = std::make_shared<std::string>();
  verb.Positional("node", node.get(), "its name");
  verb.Required("--reason", reason.get(), "shown by `holdfast nodes`");
  verb.Then([=] {
    request->set_node(*node);
    request->set_reason(*reason);
    invocation->run = [=] {
      return ChangeNode(*invocation, "drain", *request, &v1::Scheduler::Stub::DrainNode);
    };
  });
}

void AddUncordon(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "uncordon", "Gives a drained node work again",
                      "  holdfast uncordon n3\n");
  auto node = std::make_shared<std::string>();
  verb.Positional("node", node.get(), "its name");
  verb.Then([=] {
    v1::UncordonNodeRequest request;
    request.set_node(*node);
    invocation->run = [=] {
      return ChangeNode(*invocation, "uncordon", request, &v1::Scheduler::Stub::UncordonNode);
    };
  });
}

void AddConfirmDead(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(
      app, invocation, "confirm-dead",
      "Your word that a lost node runs nothing any more; jobs that waited for it start elsewhere",
      "  holdfast confirm-dead n3        after its power was cut\n");
  auto node = std::make_shared<std::string>();
  verb.Positional("node", node.get(), "its name");
  verb.Then([=] {
    v1::ConfirmNodeDeadRequest request;
    request.set_node(*node);
    invocation->run = [=] {
      return ChangeNode(*invocation, "confirm the death of", request,
                        &v1::Scheduler::Stub::ConfirmNodeDead);
    };
  });
}

}  // namespace holdfast::cli
