// SPDX-License-Identifier: Apache-2.0
// Stands for holdfast-scheduler and holdfast-agent in tests of `holdfast up`: which of the two it
// is, it takes from its own name. What it does is told by files in <state>/fake/, looked at again
// at every beat:
//
// - <name>.exit: at start, writes the file's second line to stderr and exits with the number in the
//   first
// - <name>.unready: never says READY=1
// - <name>.silent: no WATCHDOG=1 any more
// - job: the scheduler has one live job, j-1, until it is cancelled (which makes `cancelled`)
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "base/sd_notify.h"
#include "holdfast/v1/scheduler.grpc.pb.h"
#include "proto/channel.h"

namespace holdfast::cli {
namespace {

std::string Argument(int argc, char** argv, const std::string& name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (name == argv[i]) return argv[i + 1];
  }
  return "";
}

class FakeScheduler final : public v1::Scheduler::Service {
 public:
  explicit FakeScheduler(std::string state) : state_(std::move(state)) {}

  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override {
    for (const auto& entry : std::filesystem::directory_iterator(state_ + "/nodes")) {
      v1::NodeStatus* node = response->add_nodes();
      node->set_name(entry.path().filename().string());
      node->set_state(v1::NODE_STATE_READY);
    }
    return grpc::Status::OK;
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override {
    if (std::filesystem::exists(state_ + "/fake/job")) Fill(response->add_jobs());
    return grpc::Status::OK;
  }

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*,
                      v1::JobStatus* status) override {
    Fill(status);
    return grpc::Status::OK;
  }

  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*,
                         v1::JobStatus* status) override {
    std::filesystem::rename(state_ + "/fake/job", state_ + "/fake/cancelled");
    Fill(status);
    return grpc::Status::OK;
  }

 private:
  void Fill(v1::JobStatus* status) const {
    status->set_id(1);
    status->set_state(std::filesystem::exists(state_ + "/fake/cancelled") ? v1::JOB_STATE_CANCELLED
                                                                          : v1::JOB_STATE_RUNNING);
  }

  const std::string state_;
};

std::unique_ptr<grpc::Server> Serve(FakeScheduler* service, const std::string& state) {
  const std::string socket = state + "/scheduler.sock";
  ::unlink(socket.c_str());
  grpc::ServerBuilder builder;
  proto::ConfigureServer(&builder);
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(service);
  return builder.BuildAndStart();
}

int Beat(const std::string& fake) {
  const std::string silent_file = fake + ".silent";
  if (!std::filesystem::exists(fake + ".unready") && !SdNotify("READY=1")) return 3;
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  const timespec beat{0, WatchdogIntervalMs() * 1'000'000};
  while (::sigtimedwait(&set, nullptr, &beat) != SIGTERM) {
    if (!std::filesystem::exists(silent_file)) SdNotify("WATCHDOG=1");
  }
  SdNotify("STOPPING=1");
  return 0;
}

int Main(int argc, char** argv) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  const bool scheduler = std::string(argv[0]).find("holdfast-scheduler") != std::string::npos;
  std::filesystem::path state = Argument(argc, argv, "--state");
  if (!scheduler) state = state.parent_path().parent_path();
  const std::string name = scheduler ? "scheduler" : "agent-" + Argument(argc, argv, "--node");
  const std::string fake = state.string() + "/fake/" + name;
  if (std::ifstream exits(fake + ".exit"); exits) {
    int code = 0;
    std::string words;
    exits >> code;
    std::getline(exits >> std::ws, words);
    std::cerr << words << std::endl;
    return code;
  }
  FakeScheduler service(state.string());
  std::unique_ptr<grpc::Server> server;
  if (scheduler) server = Serve(&service, state.string());
  const int code = Beat(fake);
  if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  return code;
}

}  // namespace
}  // namespace holdfast::cli

int main(int argc, char** argv) { return holdfast::cli::Main(argc, argv); }
