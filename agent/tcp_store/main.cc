// SPDX-License-Identifier: Apache-2.0
// holdfast-tcp-store: the rendezvous of one attempt's ranks. The keeper starts it with a socket
// that listens already and ends it after the last rank; by hand, --bind makes one.
#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "agent/tcp_store/server.h"

namespace {

constexpr int kUsage = 2;
constexpr int kBacklog = 4096;

bool ParseNumber(const char* text, long most, int* out) {
  char* end = nullptr;
  errno = 0;
  const long number = std::strtol(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || number > most) return false;
  *out = static_cast<int>(number);
  return true;
}

int Complain(const char* what, int error) {
  std::fprintf(stderr, "holdfast-tcp-store: %s: %s\n", what, std::strerror(error));
  return 1;
}

// Binds an IPv4 address ("127.0.0.1:0") and prints the port.
holdfast::UniqueFd Bind(const std::string& text) {
  const size_t colon = text.rfind(':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  int port = 0;
  if (colon == std::string::npos || !ParseNumber(text.c_str() + colon + 1, 65535, &port) ||
      ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    errno = EINVAL;
    return {};
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  holdfast::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (!fd.valid() || ::bind(fd.get(), plain, size) != 0 || ::listen(fd.get(), kBacklog) != 0 ||
      ::getsockname(fd.get(), plain, &size) != 0)
    return {};
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return fd;
}

// Every rank is a connection, and several ranks of a node run out of the usual 1024 soon.
void RaiseDescriptors() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void Usage() {
  std::fputs(
      "usage: holdfast-tcp-store --listen-fd N | --bind ADDRESS:PORT\n"
      "Serves torch.distributed's TCPStore protocol (docs/formats/tcp-store.md) until SIGTERM.\n",
      stderr);
}

}  // namespace

int main(int argc, char** argv) {
  const option options[] = {{"listen-fd", required_argument, nullptr, 'l'},
                            {"bind", required_argument, nullptr, 'b'},
                            {"help", no_argument, nullptr, 'h'},
                            {}};
  holdfast::UniqueFd listener;
  int choice = 0, fd = -1;
  while ((choice = ::getopt_long(argc, argv, "", options, nullptr)) != -1) {
    if (choice == 'l' && !ParseNumber(optarg, INT_MAX, &fd)) choice = '?';
    if (choice == 'l') listener = holdfast::UniqueFd(fd);
    if (choice == 'b') listener = Bind(optarg);
    if (choice == 'b' && !listener.valid()) return Complain(optarg, errno);
    if (choice == 'h' || choice == '?') {
      Usage();
      return choice == 'h' ? 0 : kUsage;
    }
  }
  if (!listener.valid() || optind != argc) {
    Usage();
    return kUsage;
  }
  int listens = 0;
  socklen_t size = sizeof listens;
  if (::getsockopt(listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0)
    return Complain("--listen-fd", errno);
  if (listens == 0) return Complain("--listen-fd", EINVAL);
  RaiseDescriptors();
  ::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more ends no job
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigaddset(&end, SIGINT);
  sigprocmask(SIG_BLOCK, &end, nullptr);
  const holdfast::UniqueFd stop(::signalfd(-1, &end, SFD_CLOEXEC));
  if (!stop.valid()) return Complain("signalfd", errno);
  const int error = holdfast::tcp_store::Server(std::move(listener), stop.get()).Run();
  return error == 0 ? 0 : Complain("epoll", error);
}
