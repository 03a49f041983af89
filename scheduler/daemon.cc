// SPDX-License-Identifier: Apache-2.0
#include "scheduler/daemon.h"

#include <fcntl.h>
#include <grpc/support/time.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "proto/channel.h"
#include "proto/run_key.h"
#include "scheduler/store/rocksdb_store.h"

namespace holdfast::sched {
namespace {

constexpr size_t kSocketPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;  // 107
constexpr int64_t kShutdownMs = 1'500;
constexpr int kServerThreadsMax = 8'192;  // a thread for each stream of an agent

absl::Status CheckListen(const DaemonOptions& options) {
  if (options.listen.empty()) return absl::OkStatus();
  const size_t colon = options.listen.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == options.listen.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: \"", options.listen, "\" is not HOST:PORT"));
  }
  const std::string host = options.listen.substr(0, colon);
  const bool loopback = host == "localhost" || host == "[::1]" || host.rfind("127.", 0) == 0;
  if (!loopback && !options.insecure && options.key_file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: ", host,
                     " is not a loopback address, and connections are not encrypted yet; "
                     "give --insecure to listen there all the same, or --key-file to admit holders "
                     "of a key alone"));
  }
  return absl::OkStatus();
}

std::string UserName(uid_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  std::string buffer(16 << 10, '\0');
  if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr)
    return found->pw_name;
  return absl::StrCat(uid);
}

}  // namespace

absl::Status Daemon::Prepare(const DaemonOptions& options) {
  HF_RETURN_IF_ERROR(CheckListen(options));
  if (!options.key_file.empty()) {
    HF_ASSIGN_OR_RETURN(run_key_, proto::ReadRunKeyFile(options.key_file));
  }
  socket_ = JoinPath(options.state_dir, "scheduler.sock");
  if (socket_.size() > kSocketPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state directory path too long: ", socket_, " has ", socket_.size(),
        " bytes, a socket path at most ", kSocketPathBytesMax, "; choose a shorter --state"));
  }
  const std::string directory = JoinPath(options.state_dir, "scheduler");
  HF_RETURN_IF_ERROR(PosixFileSystem()->MakeDirs(directory));
  const std::string path = JoinPath(directory, "lock");
  lock_.Reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("lock ", path));
    return absl::AlreadyExistsError(absl::StrCat("another holdfast-scheduler runs on ",
                                                 options.state_dir, " (it holds ", path,
                                                 "); stop it, or use another --state"));
  }
  return absl::OkStatus();
}

absl::Status Daemon::OpenState(const DaemonOptions& options, const Clock* clock) {
  HF_ASSIGN_OR_RETURN(store_,
                      OpenRocksDbStore(JoinPath(JoinPath(options.state_dir, "scheduler"), "db")));
  EngineOptions engine_options;
  engine_options.default_store =
      options.store_dir.empty() ? JoinPath(options.state_dir, "store") : options.store_dir;
  engine_options.modes = options.modes;
  engine_options.uid = ::getuid();
  engine_options.gid = ::getgid();
  engine_options.user = UserName(::getuid());
  const Now now{clock->MonoNs(), clock->WallNs()};
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                      Engine::Open(store_.get(), engine_options, now));
  core_ = std::make_unique<CoreLock>(std::move(engine), clock);
  return absl::OkStatus();
}

absl::Status Daemon::Serve(const DaemonOptions& options) {
  channels_ = std::make_unique<AgentChannels>(run_key_);
  scheduler_service_ = std::make_unique<SchedulerService>(core_.get(), channels_.get(), run_key_);
  agent_service_ = std::make_unique<AgentLinkService>(core_.get(), run_key_);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  proto::ConfigureServer(&builder);
  grpc::ResourceQuota quota("holdfast-scheduler");
  quota.SetMaxThreads(kServerThreadsMax);
  builder.SetResourceQuota(quota);
  builder.RegisterService(scheduler_service_.get());
  builder.RegisterService(agent_service_.get());
  // With 0600 from the start: whoever can connect can run programs as this user.
  const mode_t mask = ::umask(0177);
  int unix_port = 0;
  builder.AddListeningPort(absl::StrCat("unix:", socket_), grpc::InsecureServerCredentials(),
                           &unix_port);
  if (!options.listen.empty())
    builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &tcp_port_);
  server_ = builder.BuildAndStart();
  ::umask(mask);
  if (server_ == nullptr || unix_port == 0) {
    if (!options.listen.empty() && tcp_port_ == 0) {
      return absl::UnavailableError(absl::StrCat(
          "--listen: ", options.listen,
          " cannot be bound; the port is taken or the address is not of this machine"));
    }
    return absl::UnavailableError(
        absl::StrCat("the socket ", socket_, " cannot be bound; is its directory writable?"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options,
                                                      const Clock* clock) {
  std::unique_ptr<Daemon> daemon(new Daemon());
  HF_RETURN_IF_ERROR(daemon->Prepare(options));
  HF_RETURN_IF_ERROR(daemon->OpenState(options, clock));
  HF_RETURN_IF_ERROR(daemon->Serve(options));
  daemon->ticker_ = std::make_unique<Ticker>(daemon->core_.get());
  daemon->prober_ = std::make_unique<NodeProber>(daemon->core_.get(), daemon->channels_.get());
  daemon->ticker_->Start();
  daemon->prober_->Start();
  return daemon;
}

void Daemon::Stop() {
  if (server_ != nullptr) {
    if (auto* health = server_->GetHealthCheckService()) health->SetServingStatus(false);
    if (core_ != nullptr) core_->Stop();
    server_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                   gpr_time_from_millis(kShutdownMs, GPR_TIMESPAN)));
    server_->Wait();
    server_.reset();
  }
  if (prober_ != nullptr) prober_->Stop();
  if (ticker_ != nullptr) ticker_->Stop();
}

Daemon::~Daemon() { Stop(); }

}  // namespace holdfast::sched
