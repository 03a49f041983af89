// SPDX-License-Identifier: Apache-2.0
// For tests: the real holdfast-keeper in a directory of its own, and a connection that speaks to it
// as the agent does. All waits end by an event or by kDeadlineMs; what did not come is a test
// failure that names it.
#ifndef HOLDFAST_TESTS_RANK_KEEPER_HARNESS_H_
#define HOLDFAST_TESTS_RANK_KEEPER_HARNESS_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rank/message.h"
#include "base/rank/start_spec.h"
#include "base/testing/temp_dir.h"
#include "base/unique_fd.h"

namespace holdfast::test_rank {

inline constexpr int kDeadlineMs = 30'000;
inline constexpr uint64_t kJob = 42;

int64_t NowMs();
// Path of a program of this build.
std::string Binary(const std::string& name);
// The whole of a file; empty when it is not there.
std::string ReadFile(const std::string& path);
bool ProcessLives(pid_t pid);  // a zombie does not
// Looks again and again until `condition` holds; false at the deadline. For what tells nobody that
// it happened.
bool Eventually(const std::function<bool()>& condition);
// All processes but this one whose environment holds `entry`.
std::vector<pid_t> ProcessesWith(const std::string& entry);
// "code<<32|status" of a wait status.
uint64_t Status(int code, int status);

struct Packet {
  rank::Message message;
  std::string payload;
  std::vector<UniqueFd> fds;
};

// A mapping of a whole memfd.
class Mapped {
 public:
  explicit Mapped(int fd);
  ~Mapped();
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  void* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  void* base_ = nullptr;
  size_t bytes_ = 0;
};

// One connection to the keeper. Without `attach` it says nothing by itself.
class AgentSide {
 public:
  explicit AgentSide(const std::string& socket_path);
  bool connected() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  void Send(rank::Message message, const std::string& payload = "",
            const std::vector<int>& fds = {});
  void SendRaw(const std::string& bytes);
  // The next packet of this type, by arrival, that `wanted` accepts; others stay for later. Null
  // (and a failure) at the deadline or at end of file.
  std::unique_ptr<Packet> Expect(uint16_t type,
                                 const std::function<bool(const Packet&)>& wanted = nullptr);
  std::unique_ptr<Packet> ExpectOfRank(uint16_t type, uint64_t rank);  // args[0] is the rank
  std::unique_ptr<Packet> ExpectOfStart(uint64_t attempt);             // kStarted of any rank
  // What has arrived by now, without waiting; false at end of file.
  bool Poll();
  bool HasSeen(uint16_t type) const;
  bool WaitForEnd();  // the keeper closed the connection

  // Asked before a packet is kept: true means that it was dealt with.
  std::function<bool(const Packet&)> on_packet;

 private:
  int ReceiveOne(int timeout_ms);  // 1, 0 at the end, -1 at the timeout
  UniqueFd socket_;
  std::deque<std::unique_ptr<Packet>> backlog_;
};

// The agent's rendezvous store, as small as it can be: carries out a request once, by (connection,
// request).
class TinyStore {
 public:
  explicit TinyStore(AgentSide* agent) : agent_(agent) {}
  bool Handle(const Packet& packet);  // true: it was a store request
  void MoveTo(AgentSide* agent) { agent_ = agent; }
  size_t requests() const { return requests_; }
  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  struct Waiting {
    rank::Message outer, inner;
    std::string key;
  };
  void Reply(const rank::Message& outer, const rank::Message& inner, uint64_t number,
             const std::string& value);

  AgentSide* agent_;
  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
  std::map<std::pair<uint32_t, uint32_t>, std::pair<uint64_t, std::string>> done_;
  size_t requests_ = 0;
};

class KeeperTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;  // kills the keeper and proves that nothing of it is left

  void StartKeeper();
  void KillKeeper();
  // Waits for the end of the keeper; its wait status.
  int ReapKeeper();
  std::unique_ptr<AgentSide> Attach(std::vector<std::unique_ptr<Packet>>* states = nullptr);

  // A spec of `ranks` ranks that all run `args`.
  rank::StartSpec Spec(uint64_t attempt, uint32_t ranks, const std::vector<std::string>& args);
  rank::StartSpec Shell(uint64_t attempt, const std::string& script) {
    return Spec(attempt, 1, {"/bin/sh", "-c", script});
  }
  void SendStart(AgentSide* agent, const rank::StartSpec& spec, int service_fd = -1);
  // Starts and waits for kStarted of every rank; the pids.
  std::vector<pid_t> StartRanks(AgentSide* agent, const rank::StartSpec& spec);
  void Signal(AgentSide* agent, int signal, uint64_t rank, uint64_t attempt);
  std::string Log(uint32_t rank, uint64_t attempt) const;
  std::string LogPath(uint32_t rank, uint64_t attempt) const;
  // Waits for a line in a file that a rank writes, e.g. a pid.
  pid_t PidFrom(const std::string& file);

  testing::TempDir dir_;
  std::string keeper_dir_, socket_, log_dir_;
  pid_t keeper_ = 0;
  uint32_t next_request_ = 100;
};

}  // namespace holdfast::test_rank

#endif  // HOLDFAST_TESTS_RANK_KEEPER_HARNESS_H_
