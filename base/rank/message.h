// SPDX-License-Identifier: Apache-2.0
// The messages of the rank interface: one SOCK_SEQPACKET Unix socket between a rank and its keeper,
// one between keeper and agent. A packet is a fixed 64-byte header, then, for the types that say
// so, `payload_bytes` bytes of payload; descriptors travel by SCM_RIGHTS. docs/formats/rank.md
// describes every type and a worked example. No third party, no allocation.
//
// All integers are little-endian host integers: the two ends are always on one machine.
#ifndef HOLDFAST_BASE_RANK_MESSAGE_H_
#define HOLDFAST_BASE_RANK_MESSAGE_H_

#include <cstddef>
#include <cstdint>

namespace holdfast::rank {

inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr size_t kPayloadBytesMax = 64 * 1024;
inline constexpr int kDescriptorsMax = 4;

enum MessageType : uint16_t {
  kInvalid = 0,

  // rank -> keeper; `request` is chosen by the rank and comes back in the reply. Requests are
  // answered once; the store requests may be sent again after kResend and are answered as if sent
  // once.
  kHello = 1,  // args: pid.                     reply kWelcome with descriptors {recorder[, arena]}
  kWantArena =
      2,  // args: data bytes a buffer, buffers, tensors. reply kArena with descriptor {arena},
          // pages already touched; the arena of an earlier attempt when it has the same layout
  kSealed = 3,       // args: step, buffer, flags(kSealedPersist). No reply.
  kRestore = 4,      // args: step, attempt that sealed it. reply kReady(buffer) or kMissing
  kStandbyTake = 5,  // reserved
  kMark = 6,  // args: phase. No reply; wakes the agent when a phase is worth an event (first step,
              // done)

  // rank -> (keeper ->) agent: the rendezvous store of this attempt. Payload: key bytes, then value
  // bytes.
  kStoreSet = 16,  // args: key_bytes, value_bytes.               reply kStoreValue
  kStoreGet = 17,  // args: key_bytes, 0, timeout_ms. Waits.      reply kStoreValue
  kStoreCas = 18,  // args: key_bytes, expected_bytes, desired_bytes; payload key,expected,desired.
                   // reply kStoreValue
  kStoreAdd =
      19,  // args: key_bytes, 0, delta (i64).            reply kStoreValue with args[0] = the sum
  kStoreWait = 20,    // args: key_bytes, 0, timeout_ms; payload is a list of keys, each with a u32
                      // length before it
  kStoreCheck = 21,   // as kStoreWait without waiting; reply args[0] = 1 when all keys exist
  kStoreDelete = 22,  // args: key_bytes. reply args[0] = 1 when it existed

  // replies
  kWelcome = 32,     // args: attempt, rank, world_size, snapshot_step or 0, snapshot_attempt
  kArena = 33,       // args: total_bytes, buffers
  kReady = 34,       // args: buffer
  kMissing = 35,     // args: none
  kStoreValue = 36,  // args: number, value_bytes; payload: value
  kError =
      37,  // args: errno-like code (ETIMEDOUT, ESTALE old attempt, EINVAL, ENOSPC); payload: text
  kResend = 38,  // unsolicited: the agent is back; send the outstanding store request again

  // agent -> keeper
  kAttach = 64,  // args: none. Becomes the agent, the older one is closed. reply kState for each
                 // rank, then kStateEnd
  kStart = 65,   // args: attempt; descriptor {spec file}. Starts the ranks of the attempt. reply
                 // kStarted or kError
  kSignal = 66,  // args: signo, rank or kAllRanks, attempt. Whole process groups; SIGKILL also
                 // reaches descendants
  kFence = 67,   // args: deadline on CLOCK_MONOTONIC in ns, 0 = none. Past it the keeper kills all
                 // ranks by itself
  kDropArenas =
      68,  // frees the arenas of ranks that do not run (job ended, or its layout changed). No reply
  kQuit = 69,   // ends the keeper when no rank lives; otherwise kError(EBUSY)
  kReply = 70,  // a reply to a forwarded request: `peer` names the rank connection; payload: a
                // whole packet

  // keeper -> agent
  kState =
      80,  // args: rank, pid, RankState, wait status, exit_mono_ns. descriptors {recorder[, arena]}
  kStateEnd = 81,
  kStarted = 82,    // args: attempt, rank, pid. descriptors {recorder[, arena]}
  kExited = 83,     // args: rank, pid, wait status (as waitid: code<<32|status), mono_ns, attempt
  kStopped = 84,    // args: rank, pid, signo, mono_ns, attempt       (WSTOPPED)
  kContinued = 85,  // args: rank, pid, 0, mono_ns, attempt           (WCONTINUED)
  kForward = 86,  // args: rank, pid. From a rank, for the agent: `peer` is the connection; payload:
                  // a whole packet
  kSealedNote = 87,    // args: rank, step, buffer, flags, attempt
  kHelloNote = 88,     // args: rank, pid, mono_ns, attempt
  kFenced = 89,        // args: mono_ns. The deadline passed and all ranks were killed
  kStartFailed = 90,   // args: rank, errno, stage (StartStage); payload: what failed (path)
  kArenaNote = 91,     // args: rank; descriptor {arena}: a rank asked for its arena, here is the
                       // mapping for the agent
  kServiceEnded = 92,  // args: wait status, ns: before its ranks did
  kStandbyNote = 93,   // args: rank, pid of its standby (0: it has none any more)
};

enum RankState : uint32_t { kRankNone = 0, kRankRunning = 1, kRankStopped = 2, kRankExited = 3 };
enum StartStage : uint32_t {
  kStageCwd = 1,
  kStageUser = 2,
  kStageExec = 3,
  kStageFork = 4,
  kStageLog = 5,
  kStageService = 6
};

inline constexpr uint64_t kAllRanks = ~0ull;
inline constexpr uint64_t kSealedPersist = 1;

struct Message {
  uint16_t version = kProtocolVersion;
  uint16_t type = kInvalid;
  uint32_t payload_bytes = 0;
  uint64_t attempt = 0;  // the attempt the sender was started for; a receiver refuses older ones
                         // with kError(ESTALE)
  uint32_t request = 0;  // correlates a reply with its request
  uint32_t peer = 0;     // keeper <-> agent only: which rank connection
  uint64_t args[5] = {0, 0, 0, 0, 0};
};
static_assert(sizeof(Message) == 64, "the header is 64 bytes on the wire");

// Descriptors received with a message; the caller owns them.
struct Descriptors {
  int fds[kDescriptorsMax] = {-1, -1, -1, -1};
  int count = 0;
};

// Sends one packet. `payload` may be null when message.payload_bytes is 0. Returns 0, or -errno
// (-EAGAIN when the peer's buffer is full and the socket is non-blocking). Never raises SIGPIPE.
int SendMessage(int socket, const Message& message, const void* payload, const int* fds,
                int fd_count);

// Receives one packet into `message`, its payload into `payload` (room for `payload_capacity`
// bytes). Returns 1, 0 at end of file, or -errno: -EAGAIN nothing there, -EPROTO a short header, a
// foreign version, a wrong length or truncated payload (the peer writes nonsense: close the
// connection). Received descriptors are CLOEXEC.
int ReceiveMessage(int socket, Message* message, void* payload, size_t payload_capacity,
                   Descriptors* descriptors);

}  // namespace holdfast::rank

#endif  // HOLDFAST_BASE_RANK_MESSAGE_H_
