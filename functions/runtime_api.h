// The Lambda Runtime API (version 2018-06-01, https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html)
// for one instance of a function: the server that the instance's runtime asks for invocations.
//
// Where AWS's documentation is silent it does what AWS's runtime interface emulator does
// (lambda/core/states.go and lambda/rapi in github.com/aws/aws-lambda-runtime-interface-emulator):
// - `invocation/next` while an invocation is unanswered gives the same invocation again. A runtime that has
//   lost its connection, or itself, goes on with it.
// - `init/error` and `restore/error` after the first `invocation/next`, and `invocation/next` after either:
//   403 InvalidStateTransition. So is one of them while another connection sends one.
// - A response that is too large: 413 to the runtime, and the answer is the error
//   Function.ResponseSizeTooLarge.
// - A response for which those of its owner's other instances leave no room waits for it; where a part of it
//   has come already (its length was not told): 413, and the answer is the error Function.NoRoomForResponse.
// - An answer for another invocation than the present one (its time is up, it has been answered, it never
//   was): 400 InvalidRequestID.
// - `restore/next` (SnapStart) is answered at once: who asks has been restored, or does not need to be.
// Responses that are streamed (Lambda-Runtime-Function-Response-Mode) are collected. An error in their
// trailers makes the answer a failed one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "functions/http_limits.h"
#include "functions/http_threads.h"
#include "functions/invocation.h"
#include "functions/shares.h"

namespace rekindle::functions {

// Thread-safe. Its methods can be called with the observer's locks held: they neither block nor call the
// observer.
class RuntimeApi {
 public:
  // Called on the HttpThreads, one call at a time for a RuntimeApi: keep it short. It may call the
  // RuntimeApi. Errors and answers are told before the runtime hears that they were taken.
  class Observer {
   public:
    virtual ~Observer() = default;
    // The runtime asks for its first invocation. Once.
    virtual void OnReady() {}
    // The function could not be loaded, or its callback before a snapshot failed. Once. `body` is mostly, but
    // needs not be, JSON.
    virtual void OnInitError(std::string /*type*/, std::string /*body*/) {}
    // The function's callback after a restore failed. Once.
    virtual void OnRestoreError(std::string /*type*/, std::string /*body*/) {}
    // Once for each invocation that was not abandoned, unless the RuntimeApi is closed before.
    virtual void OnAnswer(std::string /*request_id*/, Answer) {}
  };

  struct Options {
    // Asked for each connection with its descriptor, which stays the server's; false closes it. Called on the
    // HttpThreads. None: all may.
    std::function<bool(int connection)> may_connect = nullptr;
    // A runtime keeps its connection as long as a handler runs, so idle ones are not closed; a handler may
    // stream its response for all the time that Lambda gives it. Only one body at a time may be an
    // invocation's answer.
    HttpLimits limits = {
        .connections = 32, .body_time = absl::Minutes(15), .idle_time = absl::InfiniteDuration()};
    size_t largest_answer = kLargestAnswer;
    // Of bodies that are being read, by owner: those of all his functions' instances have no more than
    // `bodies_of_owner` bytes together. Null: nobody counts.
    std::shared_ptr<Shares> bodies = nullptr;
    std::string owner = "";
    size_t bodies_of_owner = 0;
  };

  // Serves on `listener`, a listening stream socket (Unix or TCP), which it owns; a Unix socket's file stays
  // the caller's. The observer is held weakly: it is alive during each call, and when it is gone nothing is
  // told any more.
  static absl::StatusOr<std::unique_ptr<RuntimeApi>> Start(HttpThreads& threads, UniqueFd listener,
                                                           Options options, std::weak_ptr<Observer> observer);
  ~RuntimeApi();  // Close()

  // Gives the runtime an invocation as soon as it asks for one. Others that are unanswered go first, in their
  // order. An id that is in use already is ignored.
  void Invoke(Invocation invocation);

  // The invocation's time is up: it is given to nobody any more, and an answer to it is refused. The next
  // invocation is given out when the runtime asks again. Unknown ids are ignored.
  void Abandon(std::string request_id);

  // Closes all connections and takes no new ones. No call of the observer begins after the last one that was
  // under way on another thread.
  void Close();

 private:
  class Impl;
  explicit RuntimeApi(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace rekindle::functions
