// SPDX-License-Identifier: Apache-2.0
// The engine's side towards agents: registration, beats, events, liveness, probes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/incidents.h"
#include "scheduler/engine/reports.h"
#include "scheduler/engine/saves.h"

namespace holdfast::sched {
namespace {

constexpr int64_t kProbeIntervalMs = 500;

absl::Status CheckRegistration(const v1::RegisterNodeRequest& request) {
  if (!IsValidName(request.node())) {
    return absl::InvalidArgumentError(
        absl::StrCat("node: \"", request.node(),
                     "\" is not a name of 1 to 63 of [A-Za-z0-9._-], the first a letter or digit"));
  }
  if (request.boot_id().empty()) return absl::InvalidArgumentError("boot_id: empty");
  if (request.address().rfind("unix:", 0) != 0 &&
      request.address().find(':') == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: \"", request.address(), "\" is neither unix:PATH nor HOST:PORT"));
  }
  if (request.report().devices_size() > kRanksPerNodeMax ||
      request.devices_size() > kRanksPerNodeMax) {
    return absl::InvalidArgumentError(absl::StrCat("devices: more than ", kRanksPerNodeMax));
  }
  return absl::OkStatus();
}

// The jobs whose ranks went on without their agent: seen, named, nothing to be done (rung 0).
void NoteAgentDied(Cycle& c, const std::string& node, int64_t silent_ms) {
  for (const uint64_t id : c.txn.ActiveJobs()) {
    const records::JobRecord* job = c.txn.FindJob(id);
    const v1::JobState state = job->status().state();
    const bool runs = state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING;
    if (!runs || PlacementOn(job->status().placement(), node) == nullptr) continue;
    AddSideIncident(c, id, v1::AGENT_DIED, node,
                    absl::StrCat("the agent of ", node, " died; a new one took over after ",
                                 silent_ms, " ms without a beat"));
  }
}

// Several nodes are there to be heard, and none of them was within its lease.
bool NobodyIsHeard(Cycle& c) {
  int nodes = 0;
  for (const std::string& name : c.txn.NodeNames()) {
    if (c.txn.FindNode(name)->lost()) continue;
    ++nodes;
    if (c.now.mono_ns - c.facts.nodes[name].last_beat_ns < kNodeLeaseMs * kNsPerMs) return false;
  }
  return nodes > 1;
}

}  // namespace

// An agent that was restarted has the same boot and the same address, and its directory's lock
// makes sure that the old one is gone.
bool Engine::AnotherAgentLives(const records::NodeRecord& node,
                               const v1::RegisterNodeRequest& request, Now now) const {
  const auto facts = facts_.nodes.find(node.name());
  if (facts == facts_.nodes.end() || !facts->second.level_seen || node.lost()) return false;
  if (node.boot_id() == request.boot_id() && node.address() == request.address()) return false;
  return now.mono_ns - facts->second.last_beat_ns < kNodeLeaseMs * kNsPerMs;
}

absl::StatusOr<v1::RegisterNodeResponse> Engine::RegisterNode(
    const v1::RegisterNodeRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckRegistration(request));
  const auto known = state_.nodes.find(request.node());
  if (known == state_.nodes.end() && state_.nodes.size() >= static_cast<size_t>(kNodesMax)) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kNodesMax, " nodes"));
  }
  if (known != state_.nodes.end() && AnotherAgentLives(known->second, request, now)) {
    return absl::AlreadyExistsError(
        absl::StrCat("node ", request.node(), " is served by another live agent at ",
                     known->second.address(), "; stop that one, or give this node another name"));
  }
  const std::string name = request.node();
  HF_RETURN_IF_ERROR(Run(now, nullptr, [&](Cycle& c) {
    const bool fresh = c.txn.FindNode(name) == nullptr;
    const records::NodeRecord before = fresh ? records::NodeRecord() : *c.txn.FindNode(name);
    NodeFacts& facts = c.facts.nodes[name];
    const int64_t silent_ms = fresh ? 0 : (now.mono_ns - facts.last_beat_ns) / kNsPerMs;
    records::NodeRecord* node = c.txn.MutableNode(name);
    node->set_boot_id(request.boot_id());
    node->set_address(request.address());
    node->set_agent_version(request.agent_version());
    node->set_agent_epoch(request.agent_epoch());
    node->set_lost(false);
    node->clear_lost_reason();
    node->set_confirmed_dead(false);
    if (request.devices_size() > 0) *node->mutable_devices() = request.devices();
    facts = NodeFacts();
    facts.last_beat_ns = now.mono_ns;
    if (!fresh && before.boot_id() != request.boot_id()) AbsorbReboot(c, name);
    AbsorbReport(c, name, request.report());
    ChooseWitnesses(c, name);
    if (fresh || before.lost())
      AddNodeEvent(c, name, "node.ready", fresh ? "registered" : "is back");
    if (!fresh && before.agent_epoch() != request.agent_epoch()) {
      AddNodeEvent(c, name, request.predecessor_stopped() ? "agent.restarted" : "agent.died",
                   absl::StrCat("a new agent of ", name, " took over after ", silent_ms,
                                " ms without a beat"));
      const bool died = !request.predecessor_stopped() && before.boot_id() == request.boot_id();
      if (died && !before.lost()) NoteAgentDied(c, name, silent_ms);
    }
    c.queue_dirty = true;
    c.dirty_nodes.insert(name);
    return absl::OkStatus();
  }));
  v1::RegisterNodeResponse response;
  response.set_state_uuid(state_.meta.state_uuid());
  response.set_scheduler_epoch(epoch());
  response.set_beat_interval_ms(kBeatIntervalMs);
  response.set_node_lease_ms(kNodeLeaseMs);
  return response;
}

absl::Status Engine::CheckAgent(const std::string& node, const std::string& boot_id,
                                uint64_t agent_epoch) const {
  const auto known = state_.nodes.find(node);
  if (known == state_.nodes.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", node, " is not registered with this scheduler; register first"));
  }
  if (known->second.boot_id() != boot_id || known->second.agent_epoch() != agent_epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", node, " has been registered by another agent (epoch ",
                     known->second.agent_epoch(), ", this is ", agent_epoch, "); register first"));
  }
  if (known->second.lost()) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node, " is LOST; register again"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::BeatResponse> Engine::Beat(const v1::BeatRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckAgent(request.node(), request.boot_id(), request.agent_epoch()));
  NodeFacts& facts = facts_.nodes[request.node()];
  facts.last_beat_ns = now.mono_ns;
  facts.answers.clear();
  facts.asked = 0;
  facts.words.clear();
  facts.loss_held = false;
  if (facts.liveness != Liveness::kReady) queue_dirty_ = true;
  facts.liveness = Liveness::kReady;
  facts.reason.clear();
  // A beat that was overtaken proves life, but its level is old.
  if (facts.beat_sequence == 0 || request.sequence() > facts.beat_sequence) {
    facts.beat_sequence = request.sequence();
    std::set<uint64_t> jobs = JobsOnNode(request.node());
    for (const auto& on_node : request.report().jobs()) jobs.insert(on_node.job());
    HF_RETURN_IF_ERROR(Run(now, &jobs, [&](Cycle& c) {
      AbsorbReport(c, request.node(), request.report());
      ChooseWitnesses(c, request.node());
      return absl::OkStatus();
    }));
  }
  v1::BeatResponse response;
  response.set_scheduler_epoch(epoch());
  for (const std::string& witness : state_.nodes.at(request.node()).witnesses()) {
    const auto node = state_.nodes.find(witness);
    if (node != state_.nodes.end()) response.add_witnesses(node->second.address());
  }
  return response;
}

absl::Status Engine::ReportEvents(const v1::ReportEventsRequest& request, Now now) {
  HF_RETURN_IF_ERROR(CheckAgent(request.node(), request.boot_id(), request.agent_epoch()));
  NodeFacts& facts = facts_.nodes[request.node()];
  facts.last_beat_ns = now.mono_ns;
  std::set<uint64_t> jobs = JobsOnNode(request.node());
  for (const auto& event : request.events()) jobs.insert(event.rank().job());
  for (const auto& save : request.prepared()) jobs.insert(save.job());
  return Run(now, &jobs, [&](Cycle& c) {
    AbsorbPrepared(c, request.node(), request.prepared(), /*whole_level=*/false);
    if (request.has_report()) AbsorbReport(c, request.node(), request.report());
    for (const auto& event : request.events()) AbsorbEvent(c, request.node(), event);
    return absl::OkStatus();
  });
}

// Up to kWitnessesMax other nodes, the next ones by name. They are kept as long as they are there:
// a node goes by what it was told.
void Engine::ChooseWitnesses(Cycle& c, const std::string& node) {
  std::vector<std::string> usable;
  const std::vector<std::string> names = c.txn.NodeNames();
  const size_t self =
      static_cast<size_t>(std::find(names.begin(), names.end(), node) - names.begin());
  for (size_t i = 1; i < names.size(); ++i) {
    const std::string& other = names[(self + i) % names.size()];
    if (!c.txn.FindNode(other)->lost()) usable.push_back(other);
  }
  const records::NodeRecord* record = c.txn.FindNode(node);
  std::vector<std::string> chosen;
  for (const std::string& witness : record->witnesses()) {
    if (std::find(usable.begin(), usable.end(), witness) != usable.end()) chosen.push_back(witness);
  }
  for (const std::string& other : usable) {
    if (chosen.size() >= static_cast<size_t>(kWitnessesMax)) break;
    if (std::find(chosen.begin(), chosen.end(), other) == chosen.end()) chosen.push_back(other);
  }
  const std::vector<std::string> before(record->witnesses().begin(), record->witnesses().end());
  if (before == chosen) return;
  records::NodeRecord* changed = c.txn.MutableNode(node);
  changed->clear_witnesses();
  for (const std::string& witness : chosen) changed->add_witnesses(witness);
}

void Engine::ForgiveOwnStall(Now now) {
  const int64_t late_ns = last_tick_ns_ == 0 ? 0 : now.mono_ns - last_tick_ns_;
  last_tick_ns_ = now.mono_ns;
  if (late_ns < kOwnStallMs * kNsPerMs) return;
  for (auto& [name, facts] : facts_.nodes) {
    facts.last_beat_ns = std::min(now.mono_ns, facts.last_beat_ns + late_ns);
    facts.answers.clear();
    facts.asked = 0;
  }
}

void Engine::JudgeNodes(Cycle& c) {
  const std::vector<std::string> names = c.txn.NodeNames();
  const bool all_silent = NobodyIsHeard(c);
  for (const std::string& name : names) {
    const records::NodeRecord* node = c.txn.FindNode(name);
    if (node->lost()) continue;
    NodeFacts& facts = c.facts.nodes[name];
    LivenessInput input{facts.last_beat_ns, facts.answers, facts.asked};
    LivenessVerdict verdict = JudgeLiveness(input, c.now.mono_ns);
    facts.reason = verdict.reason;
    if (verdict.liveness == Liveness::kLost && all_silent) {
      facts.reason = absl::StrCat(
          "not one of several nodes is heard: this scheduler may be cut off; ", verdict.reason);
      verdict.liveness = Liveness::kSuspect;
    }
    // Its neighbours are asked first.
    if (verdict.liveness == Liveness::kLost && facts.liveness == Liveness::kReady)
      verdict.liveness = Liveness::kSuspect;
    if (verdict.liveness == Liveness::kLost &&
        c.facts.mass_loss.WouldHold(name, static_cast<uint32_t>(names.size()), c.now.mono_ns)) {
      if (!facts.loss_held) {
        AddNodeEvent(
            c, name, "node.loss_held",
            absl::StrCat("too many nodes were lost within a minute; an operator must confirm: ",
                         verdict.reason));
      }
      facts.loss_held = true;
      facts.reason =
          absl::StrCat("its loss is held for an operator (many within a minute): ", verdict.reason);
      verdict.liveness = Liveness::kSuspect;
    }
    if (facts.loss_held && verdict.liveness == Liveness::kLost)
      verdict.liveness = Liveness::kSuspect;
    if (verdict.liveness != facts.liveness) c.queue_dirty = true;
    facts.liveness = verdict.liveness;
    if (verdict.liveness != Liveness::kLost) continue;
    records::NodeRecord* lost = c.txn.MutableNode(name);
    lost->set_lost(true);
    lost->set_lost_reason(verdict.reason);
    AddNodeEvent(c, name, "node.lost", verdict.reason);
    Facts* all = &c.facts;
    all->mass_loss.NoteLoss(
        name, c.now.mono_ns);  // at once: the next node of this very turn is judged by it
    c.txn.AfterCommit([all, name] {
      // It asks again for what it has prepared, and mentions what it has, when it is back.
      for (auto& [id, job] : all->jobs) {
        job.orders.erase(name);
        if (const auto on_node = job.nodes.find(name); on_node != job.nodes.end())
          on_node->second.known = false;
      }
    });
  }
}

std::vector<ProbeTask> Engine::DueProbes(Now now) const {
  std::vector<ProbeTask> tasks;
  for (const auto& [name, node] : state_.nodes) {
    const auto found = facts_.nodes.find(name);
    if (found == facts_.nodes.end()) continue;
    const NodeFacts& facts = found->second;
    const bool suspect = !node.lost() && facts.liveness == Liveness::kSuspect;
    if (!suspect && !node.lost()) continue;
    // A suspect is asked about at neighbours, a lost node at those who were its witnesses.
    std::vector<std::string> neighbours(node.witnesses().begin(), node.witnesses().end());
    if (suspect && neighbours.size() > static_cast<size_t>(kNeighboursAsked))
      neighbours.resize(kNeighboursAsked);
    for (const std::string& neighbour : neighbours) {
      const auto record = state_.nodes.find(neighbour);
      if (record == state_.nodes.end() || record->second.lost()) continue;
      const auto answer = facts.answers.find(neighbour);
      if (answer != facts.answers.end() &&
          now.mono_ns - answer->second.at_mono_ns < kProbeIntervalMs * kNsPerMs)
        continue;
      tasks.push_back({neighbour, record->second.address(), name, node.address()});
    }
  }
  return tasks;
}

absl::Status Engine::NoteProbe(const ProbeTask& task, bool answered,
                               const v1::ProbePeerResponse& response, Now now) {
  const auto found = facts_.nodes.find(task.target);
  if (found == facts_.nodes.end()) return absl::OkStatus();
  NodeFacts& facts = found->second;
  ProbeAnswer& answer = facts.answers[task.neighbour];
  answer = {answered, response.reachable(), response.last_heard_age_ms(), now.mono_ns};
  facts.asked = static_cast<uint32_t>(facts.answers.size());
  if (answered) {
    WitnessWord& word = facts.words[task.neighbour];
    word.alive = response.reachable();
    word.answered_ns = now.mono_ns;
    if (response.last_heard_age_ms() >= 0) {
      word.not_heard_since_ns = now.mono_ns - response.last_heard_age_ms() * kNsPerMs;
    } else if (word.not_heard_since_ns < 0) {
      word.not_heard_since_ns = now.mono_ns;  // it may have begun to listen only now
    }
    if (word.alive) word.not_heard_since_ns = now.mono_ns;
  }
  const std::set<uint64_t> jobs = JobsOnNode(task.target);
  return Run(now, &jobs, [&](Cycle& c) {
    JudgeNodes(c);
    return absl::OkStatus();
  });
}

}  // namespace holdfast::sched
