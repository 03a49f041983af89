// SPDX-License-Identifier: Apache-2.0
#include "base/inspect/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace holdfast::inspect {
namespace {

constexpr const char* kTcpStates[] = {
    "",      "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2",   "TIME_WAIT",
    "CLOSE", "CLOSE_WAIT",  "LAST_ACK", "LISTEN",   "CLOSING",   "NEW_SYN_RECV"};
constexpr uint32_t kListen = 10;

// "0100007F:0050": each 32-bit word of the address as the machine reads it, the port as people do.
std::optional<std::string> Address(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  uint32_t port = 0;
  if (parts.size() != 2 || (parts[0].size() != 8 && parts[0].size() != 32) ||
      !absl::SimpleHexAtoi(parts[1], &port) || port > 65535)
    return std::nullopt;
  uint32_t words[4] = {};
  const size_t count = parts[0].size() / 8;
  for (size_t i = 0; i < count; ++i) {
    if (!absl::SimpleHexAtoi(parts[0].substr(8 * i, 8), &words[i])) return std::nullopt;
  }
  char name[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(count == 1 ? AF_INET : AF_INET6, words, name, sizeof name);
  return count == 1 ? absl::StrCat(name, ":", port) : absl::StrCat("[", name, "]:", port);
}

}  // namespace

std::optional<std::string> FindInetSocket(const std::string& table, const std::string& protocol,
                                          uint64_t inode) {
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t number = 0;
    uint32_t state = 0;
    if (words.size() < 10 || !absl::SimpleAtoi(words[9], &number) || number != inode) continue;
    const auto local = Address(words[1]), remote = Address(words[2]);
    if (!local || !remote || !absl::SimpleHexAtoi(words[3], &state)) continue;
    const bool tcp = protocol.substr(0, 3) == "tcp";
    if (tcp && state == kListen) return absl::StrCat(protocol, " ", *local, " (LISTEN)");
    std::string out = absl::StrCat(protocol, " ", *local, " -> ", *remote);
    if (tcp && state > 0 && state < std::size(kTcpStates))
      absl::StrAppend(&out, " (", kTcpStates[state], ")");
    return out;
  }
  return std::nullopt;
}

std::optional<std::string> FindUnixSocket(const std::string& table, uint64_t inode) {
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    // "Num: RefCount Protocol Flags Type St Inode Path"; a path may hold blanks.
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t number = 0;
    if (words.size() < 7 || !absl::SimpleAtoi(words[6], &number) || number != inode) continue;
    if (words.size() == 7) return std::string("unix (no name)");
    const size_t at = static_cast<size_t>(words[7].data() - line.data());
    return absl::StrCat("unix ", line.substr(at));
  }
  return std::nullopt;
}

std::optional<std::string> SocketOf(const ProcFs& proc, pid_t pid, uint64_t inode) {
  for (const char* protocol : {"tcp", "tcp6", "udp", "udp6"}) {
    const auto table = proc.Read(pid, absl::StrCat("net/", protocol));
    if (!table.ok()) continue;
    if (auto found = FindInetSocket(*table, protocol, inode)) return found;
  }
  const auto table = proc.Read(pid, "net/unix");
  return table.ok() ? FindUnixSocket(*table, inode) : std::nullopt;
}

}  // namespace holdfast::inspect
