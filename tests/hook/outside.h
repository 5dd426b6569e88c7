// The outside of a process with the hook: what Rekindle does to park, wake and fork it, done by hand.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/subprocess.h"
#include "base/unique_fd.h"
#include "nlohmann/json.hpp"

namespace rekindle::hook {

using Json = nlohmann::json;

// One end of a control channel. Waits at most 30 s for a message, then answers {"type":"(none in time)"}.
class Channel {
 public:
  Channel() = default;
  explicit Channel(UniqueFd socket);
  static std::pair<Channel, UniqueFd> Pair();

  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }
  void Send(const Json& message, const std::vector<int>& descriptors = {});
  void SendText(const std::string& text);
  Json Receive();  // {"type":"(end)"} when the other end is gone
  Json Ask(const Json& message) {
    Send(message);
    return Receive();
  }

 private:
  UniqueFd socket_;
};

// `name` of /proc/PID/ns: what it links to.
std::string Namespace(pid_t pid, const std::string& name);
std::vector<pid_t> ChildrenOf(pid_t pid);
// What its descriptors lead to, "N -> target", sorted.
std::vector<std::string> Descriptors(pid_t pid);
// The other end of the channel of a process that is parked; waits until it is. Nothing: it ended, or 30 s are
// over.
std::optional<Channel> TakePeer(pid_t pid);
bool WaitUntilParked(pid_t pid);

// A program in PID, mount, IPC and UTS namespaces of its own, with PID `kPidInside` there, below an init.
class Domain {
 public:
  static constexpr pid_t kPidInside = 4242;

  // Its standard output is written to `output`, from the start of that file.
  Domain(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
         const std::string& output = "/dev/null");
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;
  ~Domain();

  pid_t program() const { return program_; }  // as seen from here
  pid_t init() const { return init_; }

 private:
  pid_t init_ = -1;
  pid_t program_ = -1;
};

// What a copy of the program of a domain is to live in: its init waits there.
class Sandbox {
 public:
  explicit Sandbox(const Domain& domain, const std::string& host_name);
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;
  ~Sandbox();

  pid_t init() const { return init_; }
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t init_ = -1;
  UniqueFd pidfd_;
};

}  // namespace rekindle::hook
