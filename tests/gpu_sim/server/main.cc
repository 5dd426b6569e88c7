// gpu_sim_server: the GPUs of the simulated driver. Prints "ready" when it listens; ends on SIGTERM.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu_sim/server/call_log.h"
#include "tests/gpu_sim/server/control.h"
#include "tests/gpu_sim/server/device_pool.h"
#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {
namespace {

constexpr uint64_t kDefaultContextBytes = 8 << 20;
constexpr uint32_t kLongestText = 1 << 20;

constexpr char kUsage[] =
    "usage: gpu_sim_server --socket PATH --gpu UUID,MODEL,BYTES [--gpu ...]\n"
    "         [--driver-version 13000] [--driver-text 580.95.05] [--context-bytes N]\n"
    "         [--managed-can-be-checkpointed 0|1] [--pairs-name-visible-gpus 0|1] [--mig 0|1]\n"
    "         [--pids-from-outside 0|1] [--bytes-untold 0|1] [--bytes-zero 0|1] [--forks-answer 0|1]\n"
    "         [--missing-room-is-final 0|1] [--sync-crashes 0|1] [--host-extra-bytes N] [--leaves-holes "
    "0|1]\n"
    "         [--lost-gpu UUID|none] [--silent-gpu UUID|none] [--untold-gpu UUID|none]\n";

class Server {
 public:
  Server() : pool_(kDefaultContextBytes) {
    settings_.driver_version = 13000;
    std::strcpy(settings_.driver_text, "580.95.05");
  }
  bool ParseArguments(int argc, char** argv);
  int Run();

 private:
  struct Client {
    pid_t pid;
    std::string received;
  };

  void Accept();
  bool Read(int socket);  // false: the client is gone
  bool Answer(int socket, pid_t pid, const Request& request, const std::string& text);

  std::string path_;
  int listener_ = -1;
  DevicePool pool_;
  CallLog log_;
  Settings settings_;
  std::map<int, Client> clients_;
};

bool Server::ParseArguments(int argc, char** argv) {
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc || name.compare(0, 2, "--") != 0) return false;
    const std::string value = argv[i + 1];
    if (name == "--socket") {
      path_ = value;
    } else if (name == "--gpu") {
      const size_t first = value.find(','), last = value.rfind(',');
      Gpu gpu = {};
      if (first == std::string::npos || first == last || last - first > sizeof(gpu.model) ||
          value.find('"') != std::string::npos || !UuidFromText(value.substr(0, first), &gpu.uuid)) {
        return false;
      }
      std::strcpy(gpu.model, value.substr(first + 1, last - first - 1).c_str());
      gpu.total_bytes = std::strtoull(value.c_str() + last + 1, nullptr, 10);
      pool_.AddGpu(gpu);
    } else if (!ChangeSetting(name.substr(2), value, &pool_, &settings_)) {
      return false;
    }
  }
  return !path_.empty() && pool_.Gpus().size() <= kMaxGpus;
}

int Server::Run() {
  // Each allocation is a descriptor here.
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int ending = signalfd(-1, &signals, SFD_CLOEXEC);
  // The socket of a server that was killed; a living one keeps its own.
  const int other = ConnectTo(path_);
  if (other < 0) unlink(path_.c_str());
  if (other >= 0) close(other);
  listener_ = ListenOn(path_);
  if (listener_ < 0 || ending < 0) {
    std::fprintf(stderr, "gpu_sim_server: cannot listen on %s: %s\n", path_.c_str(), std::strerror(errno));
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    std::vector<pollfd> waits = {{ending, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const auto& [socket, client] : clients_) waits.push_back({socket, POLLIN, 0});
    if (poll(waits.data(), waits.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return 1;
    }
    if (waits[0].revents != 0) break;
    for (size_t i = 2; i < waits.size(); ++i) {
      if (waits[i].revents == 0 || Read(waits[i].fd)) continue;
      pool_.DropClient(waits[i].fd);
      clients_.erase(waits[i].fd);
      close(waits[i].fd);
    }
    if (waits[1].revents != 0) Accept();
  }
  unlink(path_.c_str());
  return 0;
}

void Server::Accept() {
  const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return;
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
  clients_[socket] = {peer.pid, ""};
}

bool Server::Read(int socket) {
  Client& client = clients_[socket];
  char buffer[65536];
  const ssize_t got = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  client.received.append(buffer, static_cast<size_t>(got));
  while (client.received.size() >= sizeof(Request)) {
    Request request;
    std::memcpy(static_cast<void*>(&request), client.received.data(), sizeof(request));
    if (request.text_bytes > kLongestText) return false;
    const size_t whole = sizeof(request) + request.text_bytes;
    if (client.received.size() < whole) break;
    const std::string text = client.received.substr(sizeof(request), request.text_bytes);
    client.received.erase(0, whole);
    if (!Answer(socket, client.pid, request, text)) return false;
  }
  return true;
}

bool Server::Answer(int socket, pid_t pid, const Request& request, const std::string& text) {
  Reply reply;
  reply.settings = settings_;
  std::string reply_text;
  int descriptor = -1;
  switch (request.op) {
    case Op::kHello:
      for (const Gpu& gpu : pool_.Gpus()) reply_text.append(reinterpret_cast<const char*>(&gpu), sizeof(gpu));
      break;
    case Op::kAllocate:
      reply.result = pool_.Allocate(socket, pid, request.uuid, request.bytes, &reply.id, &descriptor);
      break;
    case Op::kFree:
      reply.result = pool_.Free(socket, request.id);
      break;
    case Op::kOpenShared:
      reply.result = pool_.OpenShared(request.id, &reply.bytes, &reply.uuid, &descriptor);
      break;
    case Op::kUseContext:
      reply.result = pool_.UseContext(socket, pid, request.uuid);
      break;
    case Op::kDropContext:
      reply.result = pool_.DropContext(socket, request.uuid);
      break;
    case Op::kBeginCall:
      reply.id = log_.Begin(request.call, request.pid != 0 ? request.pid : pid, pid, &reply.fault);
      break;
    case Op::kEndCall:
      log_.End(request.id, request.result);
      break;
    case Op::kProcesses:
      for (const ProcessUse& use : pool_.Processes(request.uuid)) {
        reply_text.append(reinterpret_cast<const char*>(&use), sizeof(use));
      }
      break;
    case Op::kControl: {
      std::vector<std::string> words;
      std::istringstream lines(text);
      for (std::string word; std::getline(lines, word);) words.push_back(word);
      if (!RunControl(words, &pool_, &log_, &settings_, &reply_text)) reply.result = gpu::cuda::kInvalidValue;
      break;
    }
    default:
      return false;
  }
  reply.text_bytes = static_cast<uint32_t>(reply_text.size());
  return SendAll(socket, &reply, sizeof(reply), descriptor) &&
         SendAll(socket, reply_text.data(), reply_text.size());
}

}  // namespace
}  // namespace rekindle::gpu_sim

int main(int argc, char** argv) {
  rekindle::gpu_sim::Server server;
  if (!server.ParseArguments(argc, argv)) {
    std::fputs(rekindle::gpu_sim::kUsage, stderr);
    return 2;
  }
  return server.Run();
}
