// SPDX-License-Identifier: Apache-2.0
#include "client/session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "client/wire.h"

namespace holdfast::client {
namespace {

using rank::Message;

constexpr int64_t kBufferTimeoutMs = 120'000;  // a save to a slow disk takes that long
constexpr int kBufferPollMs = 1;
constexpr int64_t kArenaTimeoutMs = 300'000;  // the keeper allocates every page before it answers
constexpr int64_t kRestoreTimeoutMs = 30'000;
constexpr int64_t kStoreTimeoutMs =
    300'000;  // calls that do not wait for a key: bounded by an agent that is away
constexpr int64_t kWaitSlackMs = 1'000;  // beyond a wait's own time, for the answer to travel
constexpr int64_t kSealedTimeoutMs = 1'000;
constexpr size_t kKeyBytesMax = 1024;
constexpr size_t kValueBytesMax = 60 << 10;
constexpr size_t kWiresMax = 4;  // threads that can wait in the store at the same time

Error Invalid(const std::string& text) { return {EINVAL, text}; }

std::string Env(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

bool ParseU64(std::string_view text, uint64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// "snapshot:<step>.<attempt>"; step 0 for any other start. False for a snapshot that is not written
// like this.
bool ParseRestore(std::string_view text, uint64_t* step, uint64_t* attempt) {
  constexpr std::string_view kPrefix = "snapshot:";
  *step = *attempt = 0;
  if (text.substr(0, kPrefix.size()) != kPrefix) return true;
  text.remove_prefix(kPrefix.size());
  const size_t dot = text.find('.');
  return dot != std::string_view::npos && ParseU64(text.substr(0, dot), step) &&
         ParseU64(text.substr(dot + 1), attempt) && *step > 0;
}

// A shared mapping of a whole descriptor.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { Drop(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  Error Map(int fd, int flags) {
    struct stat info;
    if (fstat(fd, &info) != 0 || info.st_size <= 0)
      return {errno == 0 ? EPROTO : errno, "keeper: a descriptor that cannot be mapped"};
    if (base_ != nullptr && info.st_dev == device_ && info.st_ino == inode_)
      return {};  // mapped already
    void* base = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE,
                      MAP_SHARED | flags, fd, 0);
    if (base == MAP_FAILED)
      return {errno, "mmap of " + std::to_string(info.st_size) + " bytes: " + strerror(errno)};
    Drop();
    base_ = base;
    bytes_ = static_cast<size_t>(info.st_size);
    device_ = info.st_dev;
    inode_ = info.st_ino;
    return {};
  }
  void* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  void Drop() {
    if (base_ != nullptr) munmap(base_, bytes_);
    base_ = nullptr;
  }
  void* base_ = nullptr;
  size_t bytes_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

Error CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kKeyBytesMax) return {};
  return Invalid("store: a key of " + std::to_string(key.size()) + " bytes; 1 to " +
                 std::to_string(kKeyBytesMax) + " are allowed");
}

Error CheckValue(std::string_view value) {
  if (value.size() <= kValueBytesMax) return {};
  return Invalid("store: a value of " + std::to_string(value.size()) + " bytes; at most " +
                 std::to_string(kValueBytesMax));
}

// u32 length, then the bytes, for each key.
Error EncodeKeys(const std::vector<std::string>& keys, std::string* out) {
  for (const std::string& key : keys) {
    if (Error error = CheckKey(key)) return error;
    const uint32_t length = static_cast<uint32_t>(key.size());
    out->append(reinterpret_cast<const char*>(&length), sizeof(length)).append(key);
  }
  if (out->size() > rank::kPayloadBytesMax - sizeof(Message)) {
    return Invalid("store: " + std::to_string(keys.size()) +
                   " keys are too many bytes for one call");
  }
  return {};
}

Message StoreMessage(rank::MessageType type, size_t a, size_t b, uint64_t c) {
  Message m;
  m.type = type;
  m.args[0] = a;
  m.args[1] = b;
  m.args[2] = c;
  return m;
}

}  // namespace

struct Session::Impl {
  bool detached = true;
  std::string socket_path;
  uint64_t job = 0, attempt = 0;
  uint32_t rank = 0, world_size = 1;
  uint64_t restore_step = 0, restore_attempt = 0;
  Mapping recorder_map, arena_map;
  rank::RecorderWriter recorder;
  rank::CollectiveWriter collectives;
  bool first_step_told = false;
  std::optional<bool> agent_seen;  // when readiness was asked; what the ranks agreed on then must
                                   // still hold at Take

  // Idle connections. A thread that finds none opens another, so that one that waits for a key
  // holds nobody up.
  std::mutex mutex;
  std::condition_variable returned;
  std::vector<std::unique_ptr<Wire>> idle;
  size_t wires = 0;

  Error Open(int64_t timeout_ms);
  Error TakeRecorder(const WireReply& welcome);
  Error MapArena(int fd);
  Error FindRestored(uint32_t* buffer, std::string* name);
  Error Borrow(int64_t deadline_ns, std::unique_ptr<Wire>* out);
  void Return(std::unique_ptr<Wire> wire);
  Error Call(const Message& m, const std::string& payload, int64_t timeout_ms, WireReply* reply);
  Error Store(const Message& m, const std::string& payload, int64_t timeout_ms, WireReply* reply);
  void Tell(rank::MessageType type, uint64_t a, uint64_t b, uint64_t c);
};

Error Session::Impl::TakeRecorder(const WireReply& welcome) {
  if (welcome.fds.empty()) return {EPROTO, "keeper: the welcome carries no recorder"};
  if (Error error = recorder_map.Map(welcome.fds[0].get(), MAP_POPULATE)) return error;
  const char* reason = "";
  if (!rank::RecorderReader::Validate(recorder_map.base(), recorder_map.bytes(), &reason))
    return {EPROTO, reason};
  recorder = rank::RecorderWriter(recorder_map.base());
  collectives = rank::CollectiveWriter(recorder_map.base(), recorder_map.bytes());
  rank::RecorderHeader* header = recorder.header();
  job = header->job;
  rank = static_cast<uint32_t>(welcome.message.args[1]);
  world_size = static_cast<uint32_t>(welcome.message.args[2]);
  header->pid.store(static_cast<uint64_t>(getpid()), std::memory_order_relaxed);
  header->hello_ns.store(static_cast<uint64_t>(MonoNs()), std::memory_order_release);
  return {};
}

Error Session::Impl::MapArena(int fd) {
  // Populated here, so that the first snapshot finds every page in place.
  if (Error error = arena_map.Map(fd, MAP_POPULATE)) return error;
  const char* reason = "";
  if (!rank::ValidateArena(arena_map.base(), arena_map.bytes(), &reason)) return {EPROTO, reason};
  return {};
}

Error Session::Impl::Open(int64_t timeout_ms) {
  if (!ParseU64(Env("HOLDFAST_ATTEMPT"), &attempt) || attempt == 0) {
    return Invalid("HOLDFAST_ATTEMPT='" + Env("HOLDFAST_ATTEMPT") +
                   "': a number from 1 is needed beside HOLDFAST_SOCKET");
  }
  if (!ParseRestore(Env("HOLDFAST_RESTORE"), &restore_step, &restore_attempt)) {
    return Invalid("HOLDFAST_RESTORE='" + Env("HOLDFAST_RESTORE") +
                   "': expected snapshot:<step>.<attempt>");
  }
  WireReply welcome;
  Error error;
  std::unique_ptr<Wire> wire =
      Wire::Open(socket_path, attempt, MonoNs() + timeout_ms * kNsPerMs, &welcome, &error);
  if (error) return error;
  if (Error bad = TakeRecorder(welcome)) return bad;
  if (welcome.fds.size() > 1) {
    if (Error bad = MapArena(welcome.fds[1].get())) return bad;
  }
  wires = 1;
  idle.push_back(std::move(wire));
  detached = false;
  return {};
}

Error Session::Impl::Borrow(int64_t deadline_ns, std::unique_ptr<Wire>* out) {
  std::unique_lock<std::mutex> lock(mutex);
  while (idle.empty() && wires >= kWiresMax) {
    const int64_t left = deadline_ns - MonoNs();
    if (left <= 0) return {ETIMEDOUT, "session: all connections to the keeper are in use"};
    returned.wait_for(lock, std::chrono::nanoseconds(left));
  }
  if (!idle.empty()) {
    *out = std::move(idle.back());
    idle.pop_back();
    return {};
  }
  ++wires;
  lock.unlock();
  WireReply welcome;
  Error error;
  *out = Wire::Open(socket_path, attempt, deadline_ns, &welcome, &error);
  if (error) {
    lock.lock();
    --wires;
    returned.notify_one();
  }
  return error;
}

void Session::Impl::Return(std::unique_ptr<Wire> wire) {
  std::lock_guard<std::mutex> lock(mutex);
  if (wire->broken()) {
    --wires;
  } else {
    idle.push_back(std::move(wire));
  }
  returned.notify_one();
}

Error Session::Impl::Call(const Message& m, const std::string& payload, int64_t timeout_ms,
                          WireReply* reply) {
  const int64_t deadline_ns = MonoNs() + timeout_ms * kNsPerMs;
  std::unique_ptr<Wire> wire;
  if (Error error = Borrow(deadline_ns, &wire)) return error;
  Error error = wire->Call(m, payload, deadline_ns, reply);
  Return(std::move(wire));
  return error;
}

Error Session::Impl::Store(const Message& m, const std::string& payload, int64_t timeout_ms,
                           WireReply* reply) {
  if (detached)
    return {ENOTCONN,
            "store: there is none; this process was not started by Holdfast (HOLDFAST_SOCKET is "
            "not set)"};
  if (Error error = Call(m, payload, timeout_ms, reply)) return error;
  if (reply->message.type != rank::kStoreValue) return {EPROTO, "store: an answer of another type"};
  return {};
}

void Session::Impl::Tell(rank::MessageType type, uint64_t a, uint64_t b, uint64_t c) {
  const int64_t deadline_ns = MonoNs() + kSealedTimeoutMs * kNsPerMs;
  std::unique_ptr<Wire> wire;
  // A note that cannot be delivered changes nothing here: the snapshot is in the arena, the step in
  // the recorder, and the agent reads both when it looks next.
  if (Borrow(deadline_ns, &wire)) return;
  Message m = StoreMessage(type, a, b, c);
  static_cast<void>(wire->Tell(m, deadline_ns));
  Return(std::move(wire));
}

Session::Session() : impl_(std::make_unique<Impl>()) {}
Session::~Session() = default;

std::unique_ptr<Session> Session::Connect(int64_t timeout_ms, Error* error) {
  *error = {};
  std::unique_ptr<Session> session(new Session());
  session->impl_->socket_path = Env("HOLDFAST_SOCKET");
  if (session->impl_->socket_path.empty()) return session;
  *error = session->impl_->Open(timeout_ms);
  if (*error) return nullptr;
  return session;
}

bool Session::Detached() const { return impl_->detached; }
uint64_t Session::job() const { return impl_->job; }
uint64_t Session::attempt() const { return impl_->attempt; }
uint32_t Session::rank() const { return impl_->rank; }
uint32_t Session::world_size() const { return impl_->world_size; }
uint64_t Session::RestoreStep() const { return impl_->restore_step; }

bool Session::AttemptIsCurrent() const { return Detached() || impl_->recorder.AttemptIsCurrent(); }
rank::StopReason Session::ShouldStop() const {
  return Detached() ? rank::kStopNone : impl_->recorder.ShouldStop();
}
uint64_t Session::SaveRequests() const { return Detached() ? 0 : impl_->recorder.SaveRequests(); }

void Session::EnterPhase(rank::Phase phase, uint64_t step, uint32_t micro_batch) {
  if (Detached()) return;
  impl_->recorder.EnterPhase(phase, step, micro_batch, static_cast<uint64_t>(MonoNs()));
  if (phase == rank::kPhaseDone) impl_->Tell(rank::kMark, phase, 0, 0);
}

void Session::FinishStep(const rank::StepRecord& record) {
  if (Detached()) return;
  impl_->recorder.FinishStep(record);
  if (impl_->first_step_told) return;
  impl_->first_step_told = true;
  impl_->Tell(rank::kMark, rank::kPhaseFirstStep, 0, 0);
}

void Session::SetLastWords(std::string_view text) {
  if (!Detached()) impl_->recorder.SetMessage(text.data(), text.size());
}

bool Session::RecordsCollectives() const { return impl_->collectives.valid(); }

Error Session::AddGroup(const char* name, const uint32_t* ranks, uint32_t size, uint32_t* group) {
  *group = 0;
  if (!RecordsCollectives()) return {};
  if (size == 0) return Invalid("group '" + std::string(name) + "': has no ranks");
  *group = impl_->collectives.AddGroup(name, ranks, size);
  if (*group != 0) return {};
  return {ENOSPC, "group '" + std::string(name) + "': this process has made more than " +
                      std::to_string(rank::kCollectiveGroupsMax) +
                      " groups; the operations of those made later are not recorded"};
}

uint64_t Session::BeginCollective(const rank::CollectiveBegin& operation) {
  if (!RecordsCollectives()) return 0;
  return impl_->collectives.Begin(operation, static_cast<uint64_t>(MonoNs()));
}

void Session::EndCollective(uint64_t handle, rank::CollectiveOutcome outcome) {
  if (handle != 0) impl_->collectives.End(handle, outcome, static_cast<uint64_t>(MonoNs()));
}

Error Session::WantArena(uint64_t data_bytes, uint32_t buffers, uint32_t tensors) {
  if (Detached()) return {};
  WireReply reply;
  if (Error error = impl_->Call(StoreMessage(rank::kWantArena, data_bytes, buffers, tensors), "",
                                kArenaTimeoutMs, &reply)) {
    return error;
  }
  if (reply.message.type != rank::kArena || reply.fds.empty())
    return {EPROTO, "keeper: the arena came without a descriptor"};
  return impl_->MapArena(reply.fds[0].get());
}

Error Session::Impl::FindRestored(uint32_t* buffer, std::string* name) {
  if (detached || restore_step == 0)
    return {ENOENT, "restore: this attempt does not start from a snapshot in memory"};
  *name = std::to_string(restore_step) + "." + std::to_string(restore_attempt);
  WireReply reply;
  if (Error error = Call(StoreMessage(rank::kRestore, restore_step, restore_attempt, 0), "",
                         kRestoreTimeoutMs, &reply)) {
    return error;
  }
  if (reply.message.type != rank::kReady || arena_map.base() == nullptr) {
    return {ENOENT, "restore: the arena of rank " + std::to_string(rank) +
                        " does not hold snapshot " + *name};
  }
  *buffer = static_cast<uint32_t>(reply.message.args[0]);
  return {};
}

Error Session::Restore(const std::vector<ckpt::TensorView>& tensors, uint64_t* samples) {
  uint32_t buffer = 0;
  std::string name, reason;
  if (Error error = impl_->FindRestored(&buffer, &name)) return error;
  if (!ckpt::RestoreSnapshot(impl_->arena_map.base(), buffer, tensors, samples, &reason))
    return {EBADMSG, "restore: snapshot " + name + ": " + reason};
  return {};
}

Error Session::ListRestore(std::vector<ckpt::TensorView>* tensors) {
  uint32_t buffer = 0;
  std::string name, reason;
  if (Error error = impl_->FindRestored(&buffer, &name)) return error;
  if (!ckpt::ListSnapshot(impl_->arena_map.base(), buffer, tensors, &reason))
    return {EBADMSG, "restore: snapshot " + name + ": " + reason};
  return {};
}

bool Session::SnapshotReady() const {
  if (Detached() || impl_->arena_map.base() == nullptr) return false;
  impl_->agent_seen = impl_->recorder.AgentPresent();
  return ckpt::SnapshotWriter(impl_->arena_map.base()).Ready(*impl_->agent_seen, impl_->attempt);
}

Error Session::TakeSnapshot(const std::vector<ckpt::TensorView>& tensors, uint64_t step,
                            uint64_t samples, bool persist, uint64_t* stall_ns) {
  *stall_ns = 0;
  if (Detached()) return {};
  if (impl_->arena_map.base() == nullptr) return Invalid("snapshot: WantArena comes first");
  const int64_t begin_ns = MonoNs();
  ckpt::SnapshotWriter writer(impl_->arena_map.base());
  std::string reason;
  uint32_t buffer = 0;
  const bool agent_present = impl_->agent_seen.value_or(impl_->recorder.AgentPresent());
  writer.ProtectSealed(true);
  const int64_t deadline_ns = begin_ns + kBufferTimeoutMs * kNsPerMs;
  while (!writer.Begin(tensors, impl_->attempt, step, samples, persist, agent_present, &buffer,
                       &reason)) {
    // Every rank said that it was ready: an agent that has come back since then took the buffer.
    if (!writer.busy() || !AttemptIsCurrent() || MonoNs() >= deadline_ns)
      return {EAGAIN, "snapshot of step " + std::to_string(step) + ": " + reason};
    poll(nullptr, 0, kBufferPollMs);  // it gives the buffer back in shared memory: nobody is woken
  }
  for (size_t i = 0; i < tensors.size(); ++i) writer.CopyTensor(i, tensors[i]);
  // An attempt that is over seals nothing: its buffer stays half filled and the keeper frees it
  // before the next one starts.
  if (!AttemptIsCurrent())
    return {ESTALE, "snapshot of step " + std::to_string(step) + ": a newer attempt has begun"};
  if (!writer.Seal(&reason))
    return {EINVAL, "snapshot of step " + std::to_string(step) + ": " + reason};
  impl_->recorder.CountSnapshot(true);
  impl_->Tell(rank::kSealed, step, buffer, persist ? rank::kSealedPersist : 0);
  *stall_ns = static_cast<uint64_t>(MonoNs() - begin_ns);
  return {};
}

void Session::CountSkippedSnapshot() {
  if (!Detached()) impl_->recorder.CountSnapshot(false);
}

Error Session::StoreSet(std::string_view key, std::string_view value) {
  if (Error error = CheckKey(key)) return error;
  if (Error error = CheckValue(value)) return error;
  WireReply reply;
  std::string payload(key);
  payload.append(value);
  return impl_->Store(StoreMessage(rank::kStoreSet, key.size(), value.size(), 0), payload,
                      kStoreTimeoutMs, &reply);
}

Error Session::StoreGet(std::string_view key, int64_t timeout_ms, std::string* value) {
  if (Error error = CheckKey(key)) return error;
  timeout_ms = std::max<int64_t>(timeout_ms, 0);
  WireReply reply;
  Error error =
      impl_->Store(StoreMessage(rank::kStoreGet, key.size(), 0, static_cast<uint64_t>(timeout_ms)),
                   std::string(key), timeout_ms + kWaitSlackMs, &reply);
  if (!error) *value = std::move(reply.payload);
  return error;
}

Error Session::StoreCompareSet(std::string_view key, std::string_view expected,
                               std::string_view desired, std::string* value) {
  if (Error error = CheckKey(key)) return error;
  if (Error error = CheckValue(expected)) return error;
  if (Error error = CheckValue(desired)) return error;
  std::string payload(key);
  payload.append(expected).append(desired);
  if (payload.size() > rank::kPayloadBytesMax - sizeof(Message)) {
    return Invalid("store: expected and desired value are " + std::to_string(payload.size()) +
                   " bytes together; at most 64 KiB");
  }
  WireReply reply;
  Error error =
      impl_->Store(StoreMessage(rank::kStoreCas, key.size(), expected.size(), desired.size()),
                   payload, kStoreTimeoutMs, &reply);
  if (!error) *value = std::move(reply.payload);
  return error;
}

Error Session::StoreAdd(std::string_view key, int64_t delta, int64_t* sum) {
  if (Error error = CheckKey(key)) return error;
  WireReply reply;
  Error error =
      impl_->Store(StoreMessage(rank::kStoreAdd, key.size(), 0, static_cast<uint64_t>(delta)),
                   std::string(key), kStoreTimeoutMs, &reply);
  if (!error) *sum = static_cast<int64_t>(reply.message.args[0]);
  return error;
}

Error Session::StoreWait(const std::vector<std::string>& keys, int64_t timeout_ms) {
  std::string payload;
  if (Error error = EncodeKeys(keys, &payload)) return error;
  timeout_ms = std::max<int64_t>(timeout_ms, 0);
  WireReply reply;
  return impl_->Store(
      StoreMessage(rank::kStoreWait, payload.size(), 0, static_cast<uint64_t>(timeout_ms)), payload,
      timeout_ms + kWaitSlackMs, &reply);
}

Error Session::StoreCheck(const std::vector<std::string>& keys, bool* all_there) {
  std::string payload;
  if (Error error = EncodeKeys(keys, &payload)) return error;
  WireReply reply;
  Error error = impl_->Store(StoreMessage(rank::kStoreCheck, payload.size(), 0, 0), payload,
                             kStoreTimeoutMs, &reply);
  if (!error) *all_there = reply.message.args[0] == 1;
  return error;
}

Error Session::StoreDelete(std::string_view key, bool* existed) {
  if (Error error = CheckKey(key)) return error;
  WireReply reply;
  Error error = impl_->Store(StoreMessage(rank::kStoreDelete, key.size(), 0, 0), std::string(key),
                             kStoreTimeoutMs, &reply);
  if (!error) *existed = reply.message.args[0] == 1;
  return error;
}

}  // namespace holdfast::client
