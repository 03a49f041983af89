// SPDX-License-Identifier: Apache-2.0
#include "agent/keeper/procs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace holdfast::keeper {
namespace {

constexpr size_t kStatBytesMax = 4096;
constexpr size_t kChildrenBytesMax = 1 << 20;
constexpr size_t kEnvironBytesMax = 4 << 20;
constexpr size_t kTreeMax = 65536;  // processes of one rank that one pass looks at

// The numeric names of a directory of /proc.
std::vector<pid_t> NumbersIn(const std::string& path) {
  std::vector<pid_t> numbers;
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return numbers;
  while (const dirent* entry = readdir(dir)) {
    const int number = atoi(entry->d_name);
    if (number > 0) numbers.push_back(number);
  }
  closedir(dir);
  return numbers;
}

// For kernels without CONFIG_PROC_CHILDREN.
std::vector<pid_t> ChildrenByScan(pid_t parent) {
  std::vector<pid_t> children;
  for (pid_t pid : NumbersIn("/proc")) {
    ProcStat stat;
    if (ReadProcStat(pid, &stat) && stat.parent == parent) children.push_back(pid);
  }
  return children;
}

}  // namespace

std::string ReadSmallFile(const char* path, size_t bytes_max) {
  std::string text;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return text;
  char block[4096];
  while (text.size() < bytes_max) {
    const ssize_t got = read(fd, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(block, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

bool ReadProcStat(pid_t pid, ProcStat* out) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const std::string text = ReadSmallFile(path, kStatBytesMax);
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return false;
  int parent, group, session;
  char state;
  if (sscanf(text.c_str() + name_end + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4)
    return false;
  out->state = state;
  out->parent = parent;
  out->session = session;
  return true;
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  static const bool have_children = access("/proc/thread-self/children", R_OK) == 0;
  if (!have_children) return ChildrenByScan(pid);
  std::vector<pid_t> children;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (pid_t thread : NumbersIn(tasks)) {
    const std::string path = tasks + "/" + std::to_string(thread) + "/children";
    const std::string text = ReadSmallFile(path.c_str(), kChildrenBytesMax);
    for (const char* at = text.c_str(); *at != '\0';) {
      char* end;
      const long child = strtol(at, &end, 10);
      if (end == at) break;
      if (child > 0) children.push_back(static_cast<pid_t>(child));
      at = *end == ' ' ? end + 1 : end;
    }
  }
  return children;
}

std::vector<pid_t> TreeOf(pid_t pid) {
  std::vector<pid_t> tree;
  std::vector<pid_t> open = {pid};
  while (!open.empty() && tree.size() < kTreeMax) {
    const pid_t next = open.back();
    open.pop_back();
    ProcStat stat;
    if (!ReadProcStat(next, &stat)) continue;
    if (stat.state != 'Z' && stat.state != 'X') tree.push_back(next);
    for (pid_t child : ChildrenOf(next)) open.push_back(child);
  }
  return tree;
}

std::string EnvironValue(pid_t pid, const std::string& name) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/environ", pid);
  const std::string text = ReadSmallFile(path, kEnvironBytesMax);
  const std::string start = name + "=";
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    if (text.compare(at, start.size(), start) == 0)
      return text.substr(at + start.size(), end - at - start.size());
    at = end + 1;
  }
  return "";
}

}  // namespace holdfast::keeper
