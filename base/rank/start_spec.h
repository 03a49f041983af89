// SPDX-License-Identifier: Apache-2.0
// What the agent tells the keeper to start: a file of NUL-terminated "key=value" strings, kept in
// the keeper's directory as spec.<attempt>, so that a person can read it (tr '\0' '\n' < spec.3)
// and a restarted agent knows what runs.
//
// - version=1 job=42 attempt=3 world_size=4 cwd=/home/u uid=1000 gid=1000 groups=1000,44
// - log_limit_bytes=67108864 log_dir=/.../logs env=K=V (common to all ranks)
// - rank=0 local=0 env=K=V (this rank only) arg=python arg=train.py rank=1 ...
//
// Keys before the first "rank" are common; "rank" opens a block. "arg" and "env" repeat, in order.
// An unknown key is an error: keeper and agent of one node are always of one build or the agent
// keeps to the older version.
#ifndef HOLDFAST_BASE_RANK_START_SPEC_H_
#define HOLDFAST_BASE_RANK_START_SPEC_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace holdfast::rank {

struct RankSpec {
  uint32_t rank = 0;   // global
  uint32_t local = 0;  // index on this node
  std::vector<std::string> args;
  std::vector<std::string> env;  // "K=V"; added to and overriding the common ones
};

struct StartSpec {
  uint64_t job = 0;
  uint64_t attempt = 0;
  uint32_t world_size = 0;
  std::string cwd = "/";
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;
  std::string log_dir;  // rank files: <log_dir>/rank<r>.<attempt>.log
  uint64_t log_limit_bytes = 64ull << 20;
  // argv of a process that serves the ranks of this attempt and ends after the last of them; it
  // inherits the socket that came with the order as descriptor kServiceFd. Empty: none.
  std::vector<std::string> service;
  // argv of a process that gets ready while the attempt runs and takes the place of a rank of the
  // next one, if that has the same argv here (agent/standby/). Empty: none.
  std::vector<std::string> standby;
  uint64_t standby_after_ms =
      0;  // from the start of the ranks, which are to have the machine first
  std::vector<std::string> env;
  std::vector<RankSpec> ranks;
};

inline constexpr int kServiceFd = 3;
inline constexpr int kStandbyGoFd = 3;     // of a standby: a pipe; one byte means go
inline constexpr int kStandbyStartFd = 4;  // of a standby: what it is to become, EncodeStandbyStart

inline constexpr size_t kStartSpecBytesMax = 4u << 20;
inline constexpr size_t kStartSpecRanksMax = 64;
inline constexpr size_t kStartSpecEntriesMax =
    4096;  // env entries of one block, args of one rank, groups

// Empty when a string in `spec` holds a NUL byte: it would be read back as a key of its own.
std::string EncodeStartSpec(const StartSpec& spec);
// "env=K=V" of each entry, then "cwd=PATH": NUL-terminated.
std::string EncodeStandbyStart(const std::vector<std::string>& env, const std::string& cwd);
// False with a reason naming the key and the value.
bool DecodeStartSpec(const std::string& text, StartSpec* out, std::string* reason);

}  // namespace holdfast::rank

#endif  // HOLDFAST_BASE_RANK_START_SPEC_H_
