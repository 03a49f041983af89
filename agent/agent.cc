// SPDX-License-Identifier: Apache-2.0
// Order of stopping: no new calls (server), no more calls to others (session, peers), the loop,
// then what the loop used.
#include "agent/agent.h"

#include <grpc/support/time.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <future>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/process.h"
#include "base/file_system.h"
#include "base/status.h"
#include "proto/channel.h"

namespace holdfast::agent {
namespace {

constexpr size_t kFileTasksMax = 256;
constexpr int64_t kServerGraceMs = 200;

}  // namespace

Agent::~Agent() {
  if (loop_thread_.joinable()) Stop(kNsPerSec * 60);
}

absl::Status Agent::Start() {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<DeviceProvider> devices,
                      MakeDeviceProvider(options_.devices));
  HF_ASSIGN_OR_RETURN(loop_, EventLoop::Create(&clock_));
  peers_ = std::make_unique<PeerClient>(loop_.get(), options_.run_key);
  saver_ = std::make_unique<Saver>(loop_.get());
  files_ = std::make_unique<WorkQueue>("evidence", kFileTasksMax);
  activity_ = std::make_unique<ActivityWatcher>();
  session_ = std::make_unique<Session>(loop_.get(), options_);
  node_ = std::make_unique<Node>(loop_.get(), options_, std::move(devices), saver_.get(),
                                 files_.get(), peers_.get(), activity_.get(), session_.get());
  auto started = std::make_shared<std::promise<absl::Status>>();  // also held by the loop's task
  loop_->Post([this, started] { started->set_value(node_->Start()); });
  loop_thread_ = std::thread([this] { loop_->Run(); });
  ::pthread_setname_np(loop_thread_.native_handle(), "loop");
  HF_RETURN_IF_ERROR(started->get_future().get());
  HF_RETURN_IF_ERROR(Serve());
  Node* node = node_.get();
  session_->Start(
      {[node, address = address_] {
         v1::RegisterNodeRequest request = node->Registration();
         request.set_address(address);
         return request;
       },
       [node](const v1::RegisterNodeResponse& response) { return node->Registered(response); },
       [node](const v1::DesiredState& state) { node->Desired(state); },
       [node](int64_t sent_ns, const v1::BeatResponse& response) {
         node->BeatAnswered(sent_ns, response);
       }});
  return absl::OkStatus();
}

absl::Status Agent::Serve() {
  service_ = std::make_unique<AgentService>(loop_.get(), node_.get(), peers_.get(), options_);
  const std::string socket = JoinPath(options_.state_dir, "agent.sock");
  ::unlink(
      socket.c_str());  // of an agent that was killed: we hold the lock, so nobody listens there
  // A port that the kernel chose is kept over restarts: by its address an agent is known.
  const std::string remembered_path = JoinPath(options_.state_dir, "port");
  std::string listen = options_.listen;
  int port = 0;
  if (absl::EndsWith(listen, ":0")) {
    const std::string host = listen.substr(0, listen.size() - 1);
    int remembered = 0;
    if (absl::SimpleAtoi(ReadSmallFile(remembered_path).value_or(""), &remembered))
      server_ = ServeAt(absl::StrCat(host, remembered), &port);
    if (server_ == nullptr) server_ = ServeAt(listen, &port);
    listen = absl::StrCat(host, port);
    if (server_ != nullptr) {
      HF_RETURN_IF_ERROR(
          PosixFileSystem()->WriteFileDurably(remembered_path, std::to_string(port)));
    }
  } else {
    server_ = ServeAt(listen, &port);
  }
  address_ = listen.empty() ? options_.address : listen;
  if (server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "cannot serve on ", socket, listen.empty() ? "" : absl::StrCat(" and ", options_.listen),
        ": is the port taken, or the address not of this machine?"));
  }
  return absl::OkStatus();
}

// Null when one of the two cannot be served.
std::unique_ptr<grpc::Server> Agent::ServeAt(const std::string& listen, int* port) {
  const std::string socket = JoinPath(options_.state_dir, "agent.sock");
  grpc::ServerBuilder builder;
  proto::ConfigureServer(&builder);
  builder.AddListeningPort(absl::StrCat("unix:", socket), grpc::InsecureServerCredentials());
  *port = 0;
  if (!listen.empty()) builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), port);
  builder.RegisterService(service_.get());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!listen.empty() && *port == 0) return nullptr;
  return server;
}

bool Agent::Stop(int64_t wait_ns) {
  if (service_ != nullptr) service_->Stop();
  if (server_ != nullptr) {
    server_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                   gpr_time_from_millis(kServerGraceMs, GPR_TIMESPAN)));
  }
  if (session_ != nullptr) session_->Stop();
  if (peers_ != nullptr) peers_->Shutdown();
  if (loop_ != nullptr) loop_->Stop();
  if (loop_thread_.joinable()) loop_thread_.join();
  node_.reset();
  activity_.reset();
  if (files_ != nullptr && !files_->Stop(wait_ns)) return false;
  if (saver_ != nullptr && !saver_->Stop(wait_ns)) return false;
  server_.reset();
  service_.reset();
  return true;
}

}  // namespace holdfast::agent
