// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/ids.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

std::string JobsOf(const v1::NodeStatus& node) {
  if (node.jobs_size() == 0) return "-";
  return absl::StrJoin(node.jobs(), " ",
                       [](std::string* out, uint64_t job) { *out += ToString(JobId{job}); });
}

// What is wrong with the node or its devices, in one line.
std::string ReasonOf(const v1::NodeStatus& node) {
  std::vector<std::string> reasons;
  if (!node.reason().empty()) reasons.push_back(node.reason());
  for (const v1::Device& device : node.devices()) {
    if (!device.healthy()) {
      reasons.push_back(absl::StrCat(device.id(), " unhealthy", device.reason().empty() ? "" : ": ",
                                     device.reason()));
    }
  }
  return absl::StrJoin(reasons, "; ");
}

std::string TableOf(const v1::ListNodesResponse& nodes) {
  Table table({"NODE", "STATE", "DEVICES", "FREE", "JOBS", "LAST BEAT", "VERSION", "REASON"});
  for (const v1::NodeStatus& node : nodes.nodes()) {
    const std::string beat =
        node.beat_age_ms() < 0
            ? "never"
            : absl::StrCat(ShortDuration(static_cast<double>(node.beat_age_ms())), " ago");
    table.Add({node.name(), Short(node.state()), absl::StrCat(node.devices_size()),
               absl::StrCat(node.devices_free()), JobsOf(node), beat, node.agent_version(),
               ReasonOf(node)});
  }
  return table.Text();
}

int Nodes(const Invocation& invocation) {
  auto client = OpenClient(invocation);
  if (!client.ok()) return Fail(client.status());
  auto nodes =
      (*client)->Call("list the nodes", &v1::Scheduler::Stub::ListNodes, v1::ListNodesRequest());
  if (!nodes.ok()) return Fail(nodes.status());
  if (invocation.json) return PrintLine(ToJson(*nodes)) ? kExitDone : kExitRefused;
  if (nodes->nodes_size() == 0) {
    Hint("no node has registered yet; agents find the scheduler by their --scheduler option");
    return kExitDone;
  }
  return PrintLine(TableOf(*nodes)) ? kExitDone : kExitRefused;
}

}  // namespace

void AddNodes(CLI::App* app, Invocation* invocation) {
  Verb verb = AddVerb(app, invocation, "nodes",
                      "Lists the nodes, their devices and what is wrong with them",
                      "  holdfast nodes\n"
                      "  holdfast nodes --json | jq -r '.nodes[].name'\n");
  verb.Then([=] { invocation->run = [=] { return Nodes(*invocation); }; });
}

}  // namespace holdfast::cli
