// One function behind Lambda's Invoke path, served by whatever runtime connects: what the daemon does,
// without instances, so that the HTTP servers can be tested with real runtimes and real clients.
//
//   function_http_server RUNTIME TIMEOUT_SECONDS
//
// RUNTIME is `tcp`, or the path of a Unix socket to make. Prints where it listens as a line of JSON, and ends
// with its standard input.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/steady_timer.hpp"
#include "functions/http_threads.h"
#include "functions/invoke_api.h"
#include "functions/runtime_api.h"

namespace rekindle::functions {
namespace {

constexpr char kName[] = "tested";
constexpr char kArn[] = "arn:aws:lambda:us-east-1:000000000000:function:tested";

class OneFunction : public Invoker, public RuntimeApi::Observer {
 public:
  OneFunction(const HttpThreads& threads, absl::Duration timeout)
      : context_(threads.context()), timeout_(timeout) {}

  void Use(RuntimeApi* api) {
    absl::MutexLock lock(&mutex_);
    api_ = api;
  }

  void Invoke(InvokeRequest request, Done done) override {
    if (request.function != kName) return done(absl::NotFoundError(request.function));
    if (request.dry_run || request.async) done(InvokeResult());
    if (request.dry_run) return;
    if (request.async) done = [](absl::StatusOr<InvokeResult>) {};
    absl::MutexLock lock(&mutex_);
    if (failed_) return done(start_error_);
    Open& open = open_[request.request_id];
    open.done = std::move(done);
    open.timer = std::make_unique<boost::asio::steady_timer>(*context_, absl::ToChronoNanoseconds(timeout_));
    open.timer->async_wait([this, id = request.request_id](const boost::system::error_code& error) {
      if (!error) TimeOut(id);
    });
    Invocation invocation;
    invocation.request_id = request.request_id;
    invocation.payload = std::make_shared<const std::string>(std::move(request.payload));
    invocation.deadline = absl::Now() + timeout_;
    invocation.function_arn = kArn;
    invocation.trace_id = std::move(request.trace_id);
    invocation.client_context = std::move(request.client_context);
    api_->Invoke(std::move(invocation));
  }

  absl::StatusOr<std::vector<ListedFunction>> List(const std::any&) override {
    ListedFunction listed;
    listed.name = kName;
    listed.runtime = "provided";
    listed.handler = "app.handler";
    listed.timeout = timeout_;
    listed.memory_mib = 128;
    listed.last_modified = absl::UnixEpoch();
    return std::vector<ListedFunction>{listed};
  }

  void OnAnswer(std::string request_id, Answer answer) override {
    InvokeResult result;
    result.payload = std::move(answer.body);
    result.content_type = std::move(answer.content_type);
    if (answer.failed) result.function_error = "Unhandled";
    result.log_tail = absl::StrCat("END RequestId: ", request_id, "\n");
    Finish(request_id, std::move(result));
  }

  void OnInitError(std::string, std::string body) override {
    std::map<std::string, Open> open;
    {
      absl::MutexLock lock(&mutex_);
      failed_ = true;
      start_error_.payload = std::move(body);
      start_error_.function_error = "Unhandled";
      open.swap(open_);
    }
    for (auto& [_, one] : open) one.done(start_error_);
  }

 private:
  struct Open {
    Done done;
    std::unique_ptr<boost::asio::steady_timer> timer;
  };

  void TimeOut(const std::string& request_id) {
    {
      absl::MutexLock lock(&mutex_);
      api_->Abandon(request_id);
    }
    InvokeResult result;
    result.payload = absl::StrFormat(
        R"({"errorType":"Sandbox.Timedout","errorMessage":"RequestId: %s Error: Task timed out after %.2f seconds"})",
        request_id, absl::ToDoubleSeconds(timeout_));
    result.function_error = "Unhandled";
    Finish(request_id, std::move(result));
  }

  void Finish(const std::string& request_id, InvokeResult result) {
    Open open;
    {
      absl::MutexLock lock(&mutex_);
      auto found = open_.find(request_id);
      if (found == open_.end()) return;
      open = std::move(found->second);
      open_.erase(found);
    }
    open.done(std::move(result));
  }

  const std::shared_ptr<boost::asio::io_context> context_;
  const absl::Duration timeout_;
  absl::Mutex mutex_;
  RuntimeApi* api_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::map<std::string, Open> open_ ABSL_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  InvokeResult start_error_;  // not changed after failed_
};

absl::StatusOr<UniqueFd> ListenTcp(std::string& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in ip{};
  ip.sin_family = AF_INET;
  ip.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof ip;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&ip), sizeof ip) != 0 ||
      ::listen(socket.get(), 128) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&ip), &size) != 0) {
    return ErrnoStatus(errno, "listening on 127.0.0.1");
  }
  address = absl::StrCat("127.0.0.1:", ntohs(ip.sin_port));
  return socket;
}

absl::Status Serve(const std::string& runtime, absl::Duration timeout) {
  HttpThreads threads;
  auto function = std::make_shared<OneFunction>(threads, timeout);
  std::string invoke_address, runtime_address = runtime;
  RK_ASSIGN_OR_RETURN(UniqueFd runtime_listener,
                      runtime == "tcp" ? ListenTcp(runtime_address) : ListenAt(runtime));
  RK_ASSIGN_OR_RETURN(auto runtime_api,
                      RuntimeApi::Start(threads, std::move(runtime_listener), {}, function));
  function->Use(runtime_api.get());
  std::vector<UniqueFd> listeners;
  RK_ASSIGN_OR_RETURN(UniqueFd invoke_listener, ListenTcp(invoke_address));
  listeners.push_back(std::move(invoke_listener));
  RK_ASSIGN_OR_RETURN(auto invoke_api, InvokeApi::Start(threads, std::move(listeners), {}, function));
  std::printf("{\"invoke\": \"%s\", \"runtime\": \"%s\"}\n", invoke_address.c_str(), runtime_address.c_str());
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace rekindle::functions

int main(int argc, char** argv) {
  double seconds = 0;
  if (argc != 3 || !absl::SimpleAtod(argv[2], &seconds)) {
    std::fprintf(stderr, "usage: function_http_server tcp|PATH TIMEOUT_SECONDS\n");
    return 2;
  }
  absl::Status served = rekindle::functions::Serve(argv[1], absl::Seconds(seconds));
  if (!served.ok()) std::fprintf(stderr, "function_http_server: %s\n", std::string(served.message()).c_str());
  return served.ok() ? 0 : 1;
}
