// SPDX-License-Identifier: Apache-2.0
#include "parallel/collectives.h"

#include <ATen/core/Tensor.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace holdfast::parallel {
namespace {

class Solo final : public Group {
 public:
  int size() const override { return 1; }
  int index() const override { return 0; }
  void AllReduce(at::Tensor&, Reduce) override {}
};

class GlooGroup final : public Group {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo, std::string name)
      : gloo_(std::move(gloo)), name_(std::move(name)) {}
  int size() const override { return gloo_->getSize(); }
  int index() const override { return gloo_->getRank(); }

  void AllReduce(at::Tensor& tensor, Reduce op) override {
    Check(tensor);
    if (tensor.numel() == 0) return;
    c10d::AllreduceOptions options;
    options.reduceOp = op == Reduce::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    std::vector<at::Tensor> list{tensor};
    try {
      gloo_->allreduce(list, options)->wait();
    } catch (const std::exception& e) {
      throw CollectiveError(absl::StrCat("all-reduce of ", tensor.numel(), " elements in group ",
                                         name_, " (rank ", index(), " of ", size(),
                                         "): ", e.what()));
    }
  }

 private:
  void Check(const at::Tensor& tensor) const {
    const auto type = tensor.scalar_type();
    if (!tensor.defined() || !tensor.is_contiguous() || !tensor.device().is_cpu() ||
        (type != at::kFloat && type != at::kDouble && type != at::kLong)) {
      throw std::invalid_argument(absl::StrCat(
          "all-reduce in group ", name_, ": the tensor must be a contiguous CPU tensor of f32, ",
          "f64 or i64, got ", tensor.defined() ? tensor.toString() : "an undefined one",
          tensor.defined() && !tensor.is_contiguous() ? ", not contiguous" : ""));
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::string name_;
};

std::shared_ptr<Group> Connect(const c10::intrusive_ptr<c10d::Store>& store,
                               const std::string& name, int index, const std::vector<int>& ranks,
                               const GroupOptions& options) {
  if (ranks.size() == 1) return SoloGroup();
  auto gloo =
      c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(options.timeout_ms));
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
  gloo->threads = 1;  // one collective at a time; more threads only change the order of work
  auto prefixed =
      c10::make_intrusive<c10d::PrefixStore>(absl::StrCat(options.prefix, "/", name), store);
  return std::make_shared<GlooGroup>(c10::make_intrusive<c10d::ProcessGroupGloo>(
                                         prefixed, index, static_cast<int>(ranks.size()), gloo),
                                     name);
}

}  // namespace

std::shared_ptr<Group> SoloGroup() { return std::make_shared<Solo>(); }

absl::StatusOr<Groups> ConnectGroups(const Mesh& mesh, c10::intrusive_ptr<c10d::Store> store,
                                     const GroupOptions& options) {
  if (mesh.ranks() > 1 && !store) {
    return absl::FailedPreconditionError(
        absl::StrCat("a job of ", mesh.ranks(), " ranks needs a rendezvous store: start it with ",
                     "`holdfast submit` (HOLDFAST_SOCKET is not set)"));
  }
  Groups groups;
  absl::Status status = Guard("connect to the peers", [&] {
    std::vector<int> all(mesh.ranks());
    for (int i = 0; i < mesh.ranks(); ++i) all[i] = i;
    groups.world = Connect(store, "world", mesh.rank(), all, options);
    groups.dp = mesh.tp() == 1 ? groups.world
                               : Connect(store, absl::StrCat("dp.", mesh.tp_index()),
                                         mesh.dp_index(), mesh.DpGroup(), options);
    groups.tp = mesh.dp() == 1 ? groups.world
                               : Connect(store, absl::StrCat("tp.", mesh.dp_index()),
                                         mesh.tp_index(), mesh.TpGroup(), options);
  });
  if (!status.ok()) return status;
  return groups;
}

std::string LocalAddressTowards(const std::string& master) {
  const std::string loopback = "127.0.0.1";
  if (master.empty() || master == "localhost") return loopback;
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(master.c_str(), "9", &hints, &found) != 0 || found == nullptr) return loopback;
  // Connecting a datagram socket sends nothing; it only makes the kernel choose the route, and with
  // it our address.
  UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  char text[INET_ADDRSTRLEN] = {};
  const bool routed = fd.valid() && connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                      inet_ntop(AF_INET, &own.sin_addr, text, sizeof(text)) != nullptr;
  freeaddrinfo(found);
  return routed ? text : loopback;
}

absl::Status Guard(const std::string& what, const std::function<void()>& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const CollectiveError& e) {
    return absl::UnavailableError(absl::StrCat(what, ": ", e.what()));
  } catch (const c10::DistError& e) {
    return absl::UnavailableError(absl::StrCat(what, ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return absl::InternalError(absl::StrCat(what, ": ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(what, ": ", e.what()));
  }
}

}  // namespace holdfast::parallel
