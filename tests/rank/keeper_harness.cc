// SPDX-License-Identifier: Apache-2.0
#include "tests/rank/keeper_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace holdfast::test_rank {

using rank::Message;

int64_t NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

std::string Binary(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().string() +
         "/bin/" + name;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool ProcessLives(pid_t pid) {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = stat.rfind(')');
  return end != std::string::npos && stat.size() > end + 2 && stat[end + 2] != 'Z' &&
         stat[end + 2] != 'X';
}

bool Eventually(const std::function<bool()>& condition) {
  const int64_t deadline = NowMs() + kDeadlineMs;
  while (!condition()) {
    if (NowMs() > deadline) return false;
    poll(nullptr, 0, 2);
  }
  return true;
}

std::vector<pid_t> ProcessesWith(const std::string& entry) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = atoi(process.path().filename().c_str());
    if (pid <= 0 || pid == getpid() || !ProcessLives(pid)) continue;
    const std::string environment = '\0' + ReadFile("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find('\0' + entry + '\0') != std::string::npos) found.push_back(pid);
  }
  return found;
}

uint64_t Status(int code, int status) {
  return static_cast<uint64_t>(code) << 32 | static_cast<uint32_t>(status);
}

// Invalid when nobody listens.
UniqueFd ConnectTo(const std::string& socket_path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return UniqueFd();
  return fd;
}

Mapped::Mapped(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return;
  void* base =
      mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return;
  base_ = base;
  bytes_ = static_cast<size_t>(info.st_size);
}

Mapped::~Mapped() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

// ---- AgentSide ----

AgentSide::AgentSide(const std::string& socket_path) : socket_(ConnectTo(socket_path)) {
  EXPECT_TRUE(socket_.valid()) << socket_path << ": " << strerror(errno);
}

void AgentSide::Send(Message message, const std::string& payload, const std::vector<int>& fds) {
  message.payload_bytes = static_cast<uint32_t>(payload.size());
  EXPECT_EQ(rank::SendMessage(socket_.get(), message, payload.data(), fds.data(),
                              static_cast<int>(fds.size())),
            0)
      << "type " << message.type;
}

void AgentSide::SendRaw(const std::string& bytes) {
  EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

int AgentSide::ReceiveOne(int timeout_ms) {
  pollfd ready = {socket_.get(), POLLIN, 0};
  if (!socket_.valid()) return 0;
  if (poll(&ready, 1, timeout_ms) <= 0) return -1;
  auto packet = std::make_unique<Packet>();
  packet->payload.resize(rank::kPayloadBytesMax);
  rank::Descriptors fds;
  const int result = rank::ReceiveMessage(socket_.get(), &packet->message, packet->payload.data(),
                                          packet->payload.size(), &fds);
  if (result <= 0) return 0;
  packet->payload.resize(packet->message.payload_bytes);
  for (int i = 0; i < fds.count; ++i) packet->fds.emplace_back(fds.fds[i]);
  if (!on_packet || !on_packet(*packet)) backlog_.push_back(std::move(packet));
  return 1;
}

std::unique_ptr<Packet> AgentSide::Expect(uint16_t type,
                                          const std::function<bool(const Packet&)>& wanted) {
  const int64_t deadline = NowMs() + kDeadlineMs;
  for (;;) {
    for (auto it = backlog_.begin(); it != backlog_.end(); ++it) {
      if ((*it)->message.type != type || (wanted && !wanted(**it))) continue;
      std::unique_ptr<Packet> found = std::move(*it);
      backlog_.erase(it);
      return found;
    }
    const int64_t left = deadline - NowMs();
    if (left <= 0 || ReceiveOne(static_cast<int>(left)) <= 0) {
      ADD_FAILURE() << "no message of type " << type << " came"
                    << (left <= 0 ? " in time" : "; the connection ended");
      for (const auto& kept : backlog_) {
        GTEST_LOG_(INFO) << "came: type " << kept->message.type << " args " << kept->message.args[0]
                         << " " << kept->message.args[1] << " " << kept->message.args[2] << " '"
                         << kept->payload.substr(0, 200) << "'";
      }
      return nullptr;
    }
  }
}

std::unique_ptr<Packet> AgentSide::ExpectOfStart(uint64_t attempt) {
  return Expect(rank::kStarted, [&](const Packet& p) { return p.message.args[0] == attempt; });
}

std::unique_ptr<Packet> AgentSide::ExpectOfRank(uint16_t type, uint64_t rank) {
  return Expect(type, [rank](const Packet& p) { return p.message.args[0] == rank; });
}

bool AgentSide::Poll() {
  int result;
  do {
    result = ReceiveOne(0);
  } while (result == 1);
  return result != 0;
}

bool AgentSide::HasSeen(uint16_t type) const {
  for (const auto& packet : backlog_) {
    if (packet->message.type == type) return true;
  }
  return false;
}

bool AgentSide::WaitForEnd() {
  const int64_t deadline = NowMs() + kDeadlineMs;
  for (int64_t left = kDeadlineMs; left > 0; left = deadline - NowMs()) {
    if (ReceiveOne(static_cast<int>(left)) == 0) return true;
  }
  return false;
}

// ---- TinyStore ----

void TinyStore::Reply(const Message& outer, const Message& inner, uint64_t number,
                      const std::string& value) {
  Message answer;
  answer.type = rank::kStoreValue;
  answer.attempt = inner.attempt;
  answer.request = inner.request;
  answer.payload_bytes = static_cast<uint32_t>(value.size());
  answer.args[0] = number;
  answer.args[1] = value.size();
  Message reply;
  reply.type = rank::kReply;
  reply.peer = outer.peer;
  agent_->Send(reply, std::string(reinterpret_cast<const char*>(&answer), sizeof(answer)) + value);
}

bool TinyStore::Handle(const Packet& packet) {
  if (packet.message.type != rank::kForward || packet.payload.size() < sizeof(Message))
    return false;
  const Message outer = packet.message;
  Message inner;
  memcpy(&inner, packet.payload.data(), sizeof(inner));
  if (inner.type < rank::kStoreSet || inner.type > rank::kStoreDelete) return false;
  ++requests_;
  const std::string body = packet.payload.substr(sizeof(Message));
  const std::string key = body.substr(0, inner.args[0]);
  const auto id = std::make_pair(outer.peer, inner.request);
  if (const auto before = done_.find(id); before != done_.end()) {
    Reply(outer, inner, before->second.first, before->second.second);
    return true;
  }
  uint64_t number = 0;
  std::string value;
  switch (inner.type) {
    case rank::kStoreSet:
      values_[key] = body.substr(inner.args[0]);
      break;
    case rank::kStoreAdd:
      number = strtoull(values_[key].c_str(), nullptr, 10) + inner.args[2];
      values_[key] = std::to_string(number);
      break;
    case rank::kStoreDelete:
      number = values_.erase(key);
      break;
    default:  // a get that waits
      if (!values_.contains(key)) {
        waiting_.push_back({outer, inner, key});
        return true;
      }
      value = values_[key];
  }
  done_[id] = {number, value};
  Reply(outer, inner, number, value);
  std::erase_if(waiting_, [&](const Waiting& w) {
    const auto held = values_.find(w.key);
    if (held != values_.end()) Reply(w.outer, w.inner, 0, held->second);
    return held != values_.end();
  });
  return true;
}

// ---- KeeperTest ----

void KeeperTest::SetUp() {
  ASSERT_FALSE(dir_.path().empty());
  keeper_dir_ = dir_.Sub("k");
  log_dir_ = dir_.Sub("logs");
  std::filesystem::create_directories(keeper_dir_);
  std::filesystem::create_directories(log_dir_);
  socket_ = std::filesystem::canonical(keeper_dir_).string() + "/sock";
  StartKeeper();
}

void KeeperTest::StartKeeper() {
  const std::string binary = Binary("holdfast-keeper");
  keeper_ = fork();
  ASSERT_GE(keeper_, 0);
  if (keeper_ == 0) {
    setsid();
    const int log =
        open((keeper_dir_ + "/keeper.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(log, 2);
    execl(binary.c_str(), "holdfast-keeper", "--dir", keeper_dir_.c_str(), "--job", "42", nullptr);
    _exit(126);
  }
  ASSERT_TRUE(Eventually([&] { return ConnectTo(socket_).valid(); }))
      << ReadFile(keeper_dir_ + "/keeper.log");
}

void KeeperTest::KillKeeper() {
  kill(keeper_, SIGKILL);
  ReapKeeper();
}

int KeeperTest::ReapKeeper() {
  int status = -1;
  EXPECT_TRUE(Eventually([&] { return waitpid(keeper_, &status, WNOHANG) == keeper_; }))
      << "the keeper does not end";
  keeper_ = 0;
  return status;
}

void KeeperTest::TearDown() {
  if (keeper_ != 0) {
    EXPECT_EQ(waitpid(keeper_, nullptr, WNOHANG), 0)
        << "the keeper died: " << ReadFile(keeper_dir_ + "/keeper.log");
    kill(keeper_, SIGTERM);
    ReapKeeper();
    EXPECT_NE(access(socket_.c_str(), F_OK), 0) << "the socket is left behind";
    EXPECT_NE(access((keeper_dir_ + "/pid").c_str(), F_OK), 0) << "the pid file is left behind";
  }
  EXPECT_TRUE(Eventually([&] { return ProcessesWith("HOLDFAST_SOCKET=" + socket_).empty(); }))
      << "processes are left behind";
  for (pid_t pid : ProcessesWith("HOLDFAST_SOCKET=" + socket_)) kill(pid, SIGKILL);
  if (HasFailure()) GTEST_LOG_(INFO) << ReadFile(keeper_dir_ + "/keeper.log");
}

std::unique_ptr<AgentSide> KeeperTest::Attach(std::vector<std::unique_ptr<Packet>>* states) {
  auto agent = std::make_unique<AgentSide>(socket_);
  Message attach;
  attach.type = rank::kAttach;
  attach.request = next_request_++;
  agent->Send(attach);
  if (agent->Expect(rank::kStateEnd) == nullptr) return agent;
  while (states != nullptr && agent->HasSeen(rank::kState))
    states->push_back(agent->Expect(rank::kState));
  return agent;
}

rank::StartSpec KeeperTest::Spec(uint64_t attempt, uint32_t ranks,
                                 const std::vector<std::string>& args) {
  rank::StartSpec spec;
  spec.job = kJob;
  spec.attempt = attempt;
  spec.world_size = ranks;
  spec.cwd = dir_.path();
  spec.uid = geteuid();
  spec.gid = getegid();
  spec.log_dir = log_dir_;
  spec.env = {"HOLDFAST_JOB=j-42", "HOLDFAST_ATTEMPT=" + std::to_string(attempt),
              "DIR=" + dir_.path()};
  for (uint32_t r = 0; r < ranks; ++r) {
    spec.ranks.push_back(
        {r, r, args, {"RANK=" + std::to_string(r), "WORLD_SIZE=" + std::to_string(ranks)}});
  }
  return spec;
}

void KeeperTest::SendStart(AgentSide* agent, const rank::StartSpec& spec, int service_fd) {
  const std::string path = keeper_dir_ + "/spec." + std::to_string(spec.attempt);
  const std::string text = rank::EncodeStartSpec(spec);
  std::ofstream(path, std::ios::binary) << text;
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Message start;
  start.type = rank::kStart;
  start.request = next_request_++;
  start.args[0] = spec.attempt;
  std::vector<int> fds = {fd.get()};
  if (service_fd >= 0) fds.push_back(service_fd);
  agent->Send(start, "", fds);
}

std::vector<pid_t> KeeperTest::StartRanks(AgentSide* agent, const rank::StartSpec& spec) {
  SendStart(agent, spec);
  std::vector<pid_t> pids;
  for (const rank::RankSpec& r : spec.ranks) {
    const auto started = agent->Expect(rank::kStarted, [&](const Packet& p) {
      return p.message.args[0] == spec.attempt && p.message.args[1] == r.rank;
    });
    pids.push_back(started == nullptr ? -1 : static_cast<pid_t>(started->message.args[2]));
  }
  return pids;
}

void KeeperTest::Signal(AgentSide* agent, int signal, uint64_t rank, uint64_t attempt) {
  Message m;
  m.type = rank::kSignal;
  m.request = next_request_++;
  m.args[0] = static_cast<uint64_t>(signal);
  m.args[1] = rank;
  m.args[2] = attempt;
  agent->Send(m);
}

std::string KeeperTest::LogPath(uint32_t rank, uint64_t attempt) const {
  return log_dir_ + "/rank" + std::to_string(rank) + "." + std::to_string(attempt) + ".log";
}

std::string KeeperTest::Log(uint32_t rank, uint64_t attempt) const {
  return ReadFile(LogPath(rank, attempt));
}

pid_t KeeperTest::PidFrom(const std::string& file) {
  pid_t pid = 0;
  EXPECT_TRUE(Eventually([&] {
    const std::string text = ReadFile(dir_.Sub(file));
    if (text.empty() || text.back() != '\n') return false;
    pid = atoi(text.c_str());
    return pid > 0;
  })) << file;
  return pid;
}

}  // namespace holdfast::test_rank
