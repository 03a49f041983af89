// SPDX-License-Identifier: Apache-2.0
#include "cli/up/plan.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/limits.h"
#include "base/status.h"
#include "cli/state_dir.h"
#include "cli/up/spawn.h"

namespace holdfast::cli {
namespace {

std::string NodeDirectory(const std::string& state, int node) {
  return absl::StrCat(state, "/nodes/n", node);
}

std::string DevicesText(int node, int count) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (int i = 0; i < count; ++i) {
    devices.push_back({{"id", absl::StrCat("n", node, "-gpu", i)},
                       {"kind", "simulated"},
                       {"memory_bytes", kSimulatedMemoryBytes},
                       {"healthy", true},
                       {"reason", ""}});
  }
  return nlohmann::ordered_json{{"devices", devices}}.dump(1) + "\n";
}

}  // namespace

absl::Status CheckUpOptions(const UpOptions& o) {
  if (o.nodes < 1 || o.nodes > kSimulatedNodesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nodes: ", o.nodes, " is not a whole number from 1 to ", kSimulatedNodesMax));
  }
  if (o.gpus_per_node < 0 || o.gpus_per_node > kRanksPerNodeMax) {
    return absl::InvalidArgumentError(absl::StrCat("--gpus-per-node: ", o.gpus_per_node,
                                                   " is not a whole number from 0 to ",
                                                   kRanksPerNodeMax));
  }
  if (!o.simulate && o.nodes > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes: ", o.nodes,
                     " nodes on one machine need --simulate; a real cluster has one agent a node "
                     "(deploy/README.md)"));
  }
  if (!o.simulate && o.gpus_per_node > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--gpus-per-node: ", o.gpus_per_node,
        " needs --simulate: real GPUs are not yet found by this version; without it a node "
        "has no devices and runs jobs with --gpus-per-node 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> WriteDevices(const std::string& state,
                                                      const UpOptions& options) {
  std::vector<std::string> notes;
  FileSystem* fs = PosixFileSystem();
  for (int i = 0; i < options.nodes; ++i) {
    HF_RETURN_IF_ERROR(fs->MakeDirs(NodeDirectory(state, i)));
    if (!options.simulate) continue;
    const std::string path = JoinPath(NodeDirectory(state, i), "devices.json");
    HF_ASSIGN_OR_RETURN(const bool exists, fs->Exists(path));
    if (!exists) {
      HF_RETURN_IF_ERROR(fs->WriteFileDurably(path, DevicesText(i, options.gpus_per_node)));
      continue;
    }
    HF_ASSIGN_OR_RETURN(const std::string text, fs->ReadFile(path));
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("devices") || !json["devices"].is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": not {\"devices\":[...]}; correct it or remove it"));
    }
    if (json["devices"].size() != static_cast<size_t>(options.gpus_per_node)) {
      notes.push_back(absl::StrCat(path, " has ", json["devices"].size(),
                                   " devices and is kept; remove it to get ",
                                   options.gpus_per_node));
    }
  }
  return notes;
}

absl::StatusOr<std::vector<DaemonSpec>> DaemonsOf(const std::string& state,
                                                  const UpOptions& options) {
  HF_ASSIGN_OR_RETURN(const std::string scheduler,
                      FindProgram("holdfast-scheduler", options.bin_dir));
  HF_ASSIGN_OR_RETURN(const std::string agent, FindProgram("holdfast-agent", options.bin_dir));
  std::vector<DaemonSpec> daemons = {{"scheduler", {scheduler, "--state", state}}};
  if (!options.store.empty()) {
    daemons[0].argv.push_back("--store");
    daemons[0].argv.push_back(options.store);
  }
  for (int i = 0; i < options.nodes; ++i) {
    const std::string node = absl::StrCat("n", i);
    const std::string directory = NodeDirectory(state, i);
    const std::string devices =
        options.simulate ? absl::StrCat("simulated:", directory, "/devices.json") : "none";
    daemons.push_back({absl::StrCat("agent-", node),
                       {agent, "--node", node, "--state", directory, "--scheduler",
                        absl::StrCat("unix:", state, "/scheduler.sock"), "--jobs-dir",
                        JoinPath(state, "jobs"), "--devices", devices}});
    if (!options.owned) continue;
    daemons.back().argv.insert(daemons.back().argv.end(),
                               {"--owner-fd", absl::StrCat(kInheritedFd)});
    daemons.back().gets_owner = true;
  }
  return daemons;
}

}  // namespace holdfast::cli
