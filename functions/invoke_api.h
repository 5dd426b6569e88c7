// The HTTP front for callers of functions, with the paths, headers and errors of AWS Lambda's API, so that
// the AWS CLI, SDKs and curl can call it by an endpoint URL:
//   POST /2015-03-31/functions/NAME/invocations    Invoke: RequestResponse, Event and DryRun, logs' tail
//   GET  /2015-03-31/functions/                    ListFunctions
//   GET  /2015-03-31/functions/NAME                GetFunction, and …/configuration
//   GET  /health                                   200; also where a connection is one too many
// and HEAD where there is GET.
// NAME is a name, NAME:$LATEST, or a partial or full ARN of any account and region. $LATEST is the only
// version. Signatures are not looked at: who a caller is follows from its connection (Options::identify).
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "functions/http_limits.h"
#include "functions/http_threads.h"
#include "functions/invocation.h"

namespace rekindle::functions {

// The other end of a connection.
struct Peer {
  int socket = -1;  // the connection, for getsockopt; only during the call
  bool unix_socket = false;
  // "127.0.0.1:4711" or "[::1]:4711"; empty for Unix sockets.
  std::string local_address;
  std::string remote_address;
};

struct InvokeRequest {
  std::any identity;           // what Options::identify gave
  std::string function;        // its name alone
  std::string payload;         // JSON; "{}" where the caller sent nothing
  std::string request_id;      // a new UUID
  std::string client_context;  // JSON; empty: none
  std::string trace_id;        // as the caller gave it; may be empty
  bool async = false;          // done is to be called when it is accepted; the result is not looked at
  bool dry_run = false;        // whether it could be invoked: nothing is to run
  bool tail_log = false;       // the result's log_tail is wanted
  // Whether the caller has gone, and with it whoever wanted the result. Quick; any thread.
  std::function<bool()> gone;
};

struct InvokeResult {
  std::string payload;
  std::string content_type = "application/json";
  std::string function_error;  // "Unhandled" where the function failed, and payload is the error's JSON
  std::string log_tail;        // the invocation's log; its last 4 KiB are sent
  std::string executed_version = "$LATEST";
};

struct ListedFunction {
  std::string name;
  std::string runtime;  // "python3.11"
  std::string handler;
  std::string description;
  uint64_t code_size = 0;  // bytes
  uint64_t memory_mib = 0;
  absl::Duration timeout;
  absl::Time last_modified;
};

// Who runs functions. Errors become Lambda's:
//   NotFound            404 ResourceNotFoundException ("Function not found: ARN")
//   InvalidArgument     400 InvalidParameterValueException
//   ResourceExhausted   429 TooManyRequestsException
//   PermissionDenied, Unauthenticated  403 AccessDeniedException
//   FailedPrecondition  409 ResourceConflictException
//   others              500 ServiceException
class Invoker {
 public:
  using Done = std::function<void(absl::StatusOr<InvokeResult>)>;

  virtual ~Invoker() = default;
  // Called on the HttpThreads, many at a time: it must not block. `done` is called once, from any thread,
  // also within Invoke, and also when the InvokeApi is gone. A caller that has gone does not end its
  // invocation that has begun.
  virtual void Invoke(InvokeRequest request, Done done) = 0;
  // In the order of their names.
  virtual absl::StatusOr<std::vector<ListedFunction>> List(const std::any& identity) = 0;
};

// Thread-safe.
class InvokeApi {
 public:
  struct Options {
    // Who the caller at the other end of a connection is; asked once for each. When it fails, the
    // connection's requests are refused with this error. Called on a thread for each listener, not on the
    // HttpThreads: while it takes its time, only others that connect there wait. None: everybody, with an
    // empty identity.
    std::function<absl::StatusOr<std::any>(const Peer&)> identify = nullptr;
    // Whose share of the connections one takes, for its whole life, and of the memory for bodies, as long as
    // one is read (HttpLimits::connections_of_one, bodies_of_one); what goes beyond it is refused, and told
    // so. Empty: nobody's, it is only one of all. Called after `identify`, with what that gave. None: nobody
    // has a share.
    std::function<std::string(const Peer&, const absl::StatusOr<std::any>& identity)> share_of = nullptr;
    HttpLimits limits = {};
    // What the ARNs in answers begin with.
    std::string arn_prefix = "arn:aws:lambda:us-east-1:000000000000:function:";
  };

  // Serves on `listeners`, listening stream sockets (Unix or TCP), which it owns; a Unix socket's file stays
  // the caller's. The invoker is held weakly: it is alive during each call, and when it is gone callers are
  // told ServiceException.
  static absl::StatusOr<std::unique_ptr<InvokeApi>> Start(HttpThreads& threads,
                                                          std::vector<UniqueFd> listeners, Options options,
                                                          std::weak_ptr<Invoker> invoker);
  ~InvokeApi();  // Close()

  // What was refused until now because a limit was reached.
  struct Refusals {
    uint64_t connections = 0;         // 503: there were as many as there may be
    uint64_t connections_of_one = 0;  // 429: their caller had as many as one may
    uint64_t bodies = 0;              // 503: bodies that were being read had all memory for them
    uint64_t bodies_of_one = 0;       // 429: their caller's had as much of it as one's may
    uint64_t too_large = 0;           // 413, 431: a body or a head
  };
  Refusals refusals() const;

  // From now on requests are answered with 503, invocations in work when they are through; their connections
  // close after it.
  void TakeNoMore();
  // After TakeNoMore: returns when all of these have been answered, or at `deadline`.
  void AwaitAnswers(const Deadline& deadline);
  // Takes no new connections and closes those there are; invocations go on, their results are dropped.
  void Close();

 private:
  class Impl;
  InvokeApi(std::unique_ptr<HttpThreads> accepting, std::shared_ptr<Impl> impl);
  const std::unique_ptr<HttpThreads> accepting_;  // outlives what is served
  const std::shared_ptr<Impl> impl_;
};

}  // namespace rekindle::functions
