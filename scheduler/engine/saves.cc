// SPDX-License-Identifier: Apache-2.0
#include "scheduler/engine/saves.h"

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "scheduler/engine/incidents.h"

namespace holdfast::sched {
namespace {

CheckpointId IdOf(uint64_t job, const Point& point) {
  return {JobId{job}, point.attempt, point.step};
}

// Goes out only once the transaction is durable: a commit order before the commit point could
// outlive a crash that undoes it.
void AddOrder(Cycle& c, uint64_t job, const std::string& node, const Point& point,
              const std::string& record, bool abort) {
  Facts* facts = &c.facts;
  v1::CommitOrder order;
  order.set_job(job);
  order.set_attempt(point.attempt);
  order.set_step(point.step);
  order.set_record(record);
  order.set_abort(abort);
  c.dirty_nodes.insert(node);
  c.txn.AfterCommit([facts, job, node, point, order = std::move(order)] {
    auto& orders = facts->jobs[job].orders[node];
    if (orders.size() < kOrdersPerNodeMax) orders.emplace(point, PendingOrder{.order = order});
  });
}

// A node asks, by listing it, what became of a save that is settled.
void Answer(Cycle& c, uint64_t job, const std::string& node, const Point& point) {
  const auto& orders = c.job_facts(job).orders;
  if (const auto at = orders.find(node); at != orders.end() && at->second.count(point)) return;
  const records::CheckpointRecord* known = c.txn.FindCheckpoint(job, point);
  if (known == nullptr || known->aborted()) {
    AddOrder(c, job, node, point, "", /*abort=*/true);
    return;
  }
  const absl::StatusOr<std::string> record = c.txn.ReadCommitRecord(job, point);
  if (record.ok()) AddOrder(c, job, node, point, *record, /*abort=*/false);
}

void AbsorbOne(Cycle& c, const std::string& node, const v1::PreparedSave& save) {
  const records::JobRecord* job = c.txn.FindJob(save.job());
  const Point point{save.attempt(), save.step()};
  if (job == nullptr || point.attempt == 0 || point.attempt > job->last_run_attempt()) return;
  if (c.txn.FindCheckpoint(save.job(), point) != nullptr ||
      point.attempt < job->last_run_attempt() || IsEnded(job->status().state())) {
    Answer(c, save.job(), node, point);
    return;
  }
  if (NodeOfRank(job->status().placement(), save.rank()) != node) return;
  JobFacts& facts = c.job_facts(save.job());
  if (!save.error().empty()) {
    facts.saves.AddError(point, save.rank(), node, save.error(), save.error_class());
    return;
  }
  std::string reason;
  const auto added =
      facts.saves.Add(save.job(), point, save.rank(), node, save.manifest(), &reason);
  if (added == PreparedSets::Added::kNew) c.dirty_nodes.insert(node);
  if (added == PreparedSets::Added::kRefused && !save.manifest().empty()) {
    facts.saves.AddError(point, save.rank(), node, reason, v1::STORAGE);
  }
}

// Orders that the level shows as carried out. The first level after an order may have been on its
// way before it.
void SettleOrders(Cycle& c, uint64_t job, const std::string& node, const std::set<Point>& listed) {
  constexpr int kLevelsWithoutWord = 4;
  JobFacts& facts = c.job_facts(job);
  const auto orders = facts.orders.find(node);
  if (orders == facts.orders.end()) return;
  const NodeOfJob& on_node = facts.nodes[node];
  std::erase_if(orders->second, [&](const auto& entry) {
    const auto& [point, pending] = entry;
    if (!pending.delivered || pending.levels_since == 0) return false;
    if (listed.count(point)) {
      // It asks about what the order was to settle (a rank of it came late): the next level gets a
      // fresh order.
      if (pending.levels_since < kLevelsWithoutWord) return false;
      c.dirty_nodes.insert(node);
      return true;
    }
    const bool written =
        !pending.order.abort() && on_node.known && on_node.commits_written >= point.step;
    if (written) facts.written.insert(point);
    const bool done = written || (pending.order.abort() && pending.levels_since >= 2) ||
                      pending.levels_since >= kLevelsWithoutWord;
    if (done) c.dirty_nodes.insert(node);
    return done;
  });
  if (orders->second.empty()) facts.orders.erase(orders);
}

void RecordOutcome(Cycle& c, const records::JobRecord& job, const Point& point,
                   const OpenSave& save, records::CheckpointRecord record) {
  record.mutable_ref()->set_job(job.status().id());
  record.mutable_ref()->set_attempt(point.attempt);
  record.mutable_ref()->set_step(point.step);
  record.set_store(job.store());
  for (const std::string& node : save.nodes) record.add_nodes(node);
  c.txn.PutCheckpoint(record);
}

void Abort(Cycle& c, uint64_t id, const Point& point, const OpenSave& save,
           const std::string& why) {
  records::JobRecord* job = c.txn.MutableJob(id);
  records::CheckpointRecord record;
  record.set_aborted(true);
  record.set_why(why);
  RecordOutcome(c, *job, point, save, record);
  job->mutable_status()->set_saves_aborted(job->status().saves_aborted() + 1);
  AddJobEvent(c, *job, "checkpoint.aborted", absl::StrCat(ToString(IdOf(id, point)), ": ", why));
  for (const std::string& node : save.nodes) AddOrder(c, id, node, point, "", /*abort=*/true);
}

void Commit(Cycle& c, uint64_t id, const Point& point, const OpenSave& save) {
  std::vector<ckpt::RankManifest> manifests;
  for (const auto& [rank, manifest] : save.manifests) manifests.push_back(manifest);
  absl::StatusOr<ckpt::CommitRecord> joined = ckpt::JoinManifests(manifests, c.now.wall_ns);
  std::string encoded;
  if (joined.ok()) encoded = ckpt::EncodeCommitRecord(*joined);
  if (encoded.size() > kCommitRecordBytesMax) {
    joined = absl::ResourceExhaustedError(
        absl::StrCat("its commit record of ", encoded.size(), " bytes is larger than the limit of ",
                     kCommitRecordBytesMax, ": too many tensors times ranks for this version"));
  }
  if (!joined.ok()) {
    const std::string why(joined.status().message());
    const bool corrupt = joined.status().code() == absl::StatusCode::kDataLoss;
    Abort(c, id, point, save, why);
    CountSideIncident(c, id, corrupt ? v1::SILENT_CORRUPTION : v1::STORAGE, "",
                      absl::StrCat("the save of step ", point.step, " was aborted: ", why));
    return;
  }
  records::JobRecord* job = c.txn.MutableJob(id);
  records::CheckpointRecord record;
  record.set_record(std::move(encoded));
  record.set_bytes(joined->total_bytes);
  record.set_committed_wall_ns(c.now.wall_ns);
  RecordOutcome(c, *job, point, save, record);
  job->mutable_status()->set_saves_committed(job->status().saves_committed() + 1);
  job->mutable_book()->set_points_visible(true);
  v1::CheckpointRef* newest = job->mutable_status()->mutable_newest_checkpoint();
  newest->set_job(id);
  newest->set_attempt(point.attempt);
  newest->set_step(point.step);
  AddJobEvent(c, *job, "checkpoint.committed",
              absl::StrCat(ToString(IdOf(id, point)), ", ", joined->total_bytes, " bytes in ",
                           job->store()));
  for (const std::string& node : save.nodes)
    AddOrder(c, id, node, point, record.record(), /*abort=*/false);
  MarkDirty(c, *job);
}

}  // namespace

void AbsorbPrepared(Cycle& c, const std::string& node,
                    const google::protobuf::RepeatedPtrField<v1::PreparedSave>& prepared,
                    bool whole_level) {
  std::map<uint64_t, std::set<Point>> listed;
  for (const auto& save : prepared) {
    listed[save.job()].insert({save.attempt(), save.step()});
    AbsorbOne(c, node, save);
  }
  if (!whole_level) return;
  std::vector<uint64_t> with_orders;
  for (const auto& [id, facts] : c.facts.jobs) {
    if (facts.orders.count(node)) with_orders.push_back(id);
  }
  for (const uint64_t id : with_orders) SettleOrders(c, id, node, listed[id]);
}

void SettleSaves(Cycle& c, uint64_t id) {
  JobFacts& facts = c.job_facts(id);
  const records::JobRecord* job = c.txn.FindJob(id);
  const uint32_t world = WorldSize(job->status().placement());
  std::vector<Point> settled;
  Point newest_committed;
  for (const auto& [point, save] : facts.saves.open()) {
    if (c.txn.FindCheckpoint(id, point) != nullptr) continue;  // settled in this very transaction
    if (!save.error.empty()) {
      settled.push_back(point);
      Abort(c, id, point, save, save.error);
      const v1::FaultClass error_class =
          save.error_class == v1::SILENT_CORRUPTION ? v1::SILENT_CORRUPTION : v1::STORAGE;
      CountSideIncident(c, id, error_class, *save.nodes.begin(),
                        absl::StrCat("the save of step ", point.step, " failed: ", save.error));
    } else if (facts.saves.IsWhole(point, world)) {
      settled.push_back(point);
      Commit(c, id, point, save);
      newest_committed = std::max(newest_committed, point);
    }
  }
  // Ranks prepare their saves in order: who has prepared this one will not prepare an older one.
  for (const auto& [point, save] : facts.saves.open()) {
    const bool older =
        point.attempt == newest_committed.attempt && point.step < newest_committed.step;
    if (!older || c.txn.FindCheckpoint(id, point) != nullptr) continue;
    settled.push_back(point);
    Abort(c, id, point, save,
          absl::StrCat("only ", save.manifests.size(), " of ", world,
                       " ranks have prepared it, and step ", newest_committed.step,
                       " is committed already"));
  }
  if (settled.empty()) return;
  Facts* all = &c.facts;
  c.txn.AfterCommit([all, id, settled] {
    for (const Point& point : settled) all->jobs[id].saves.Drop(point);
  });
}

void AbortOpenSaves(Cycle& c, uint64_t id, const std::string& why) {
  JobFacts& facts = c.job_facts(id);
  for (const auto& [point, save] : facts.saves.open()) {
    // Settled in this very transaction, or never begun by any rank.
    if (c.txn.FindCheckpoint(id, point) != nullptr) continue;
    Abort(c, id, point, save,
          absl::StrCat(why, "; ", save.manifests.size(), " rank(s) had prepared it"));
  }
  Facts* all = &c.facts;
  c.txn.AfterCommit([all, id] { all->jobs[id].saves.Clear(); });
}

void NoteCompleteSnapshots(Cycle& c, const records::JobRecord& job) {
  JobFacts& facts = c.job_facts(job.status().id());
  const std::vector<records::AttemptLink> links(job.line().begin(), job.line().end());
  const Line line(job.status().id(), links);
  const Point newest = NewestCompleteSnapshot(job.status().placement(), facts.arenas, line);
  if (newest.attempt == 0) return;
  if (newest.attempt != job.last_run_attempt() || newest.step <= facts.newest_complete_step) return;
  facts.newest_complete_step = newest.step;
  facts.newest_complete_ns = c.now.mono_ns;
  MarkDirty(c, job);
}

void RepeatCommitOrders(Cycle& c, const records::JobRecord& job, const Point& point) {
  const absl::StatusOr<std::string> record = c.txn.ReadCommitRecord(job.status().id(), point);
  if (!record.ok()) return;
  for (const auto& node : job.status().placement().nodes()) {
    AddOrder(c, job.status().id(), node.node(), point, *record, /*abort=*/false);
  }
}

v1::CheckpointRef NewestCheckpoint(Cycle& c, const records::JobRecord& job) {
  const std::vector<records::AttemptLink> links(job.line().begin(), job.line().end());
  const Line line(job.status().id(), links);
  v1::CheckpointRef newest;
  for (const auto& record : c.txn.Checkpoints(job.status().id())) {
    if (record.aborted() || !line.Contains({record.ref().attempt(), record.ref().step()})) continue;
    if (record.ref().step() >= newest.step()) newest = record.ref();
  }
  return newest;
}

}  // namespace holdfast::sched
