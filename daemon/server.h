// The daemon's service on its sockets: a Unix socket whose clients the kernel names, and TCP with mutual TLS.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/node.h"
#include "functions/http_limits.h"

namespace rekindle::daemon {

struct TlsOptions {
  std::string listen;                       // "HOST:PORT"; empty: no TCP
  std::string certificate, key, client_ca;  // PEM files
};

struct ServerOptions {
  NodeOptions node;
  std::string socket;  // path of the Unix socket
  TlsOptions tls;
  // "HOST:PORT" under which other daemons reach this one, for groups; empty: they can't.
  std::string advertise;
  std::string metrics;                      // where Prometheus finds GET /metrics; empty: nowhere
  std::vector<std::string> functions_http;  // "HOST:PORT" or "unix:PATH": Lambda's Invoke path
  functions::HttpLimits functions_limits;   // of what is served there
  // In which each byte of the store is read again, to find what the disk has damaged; zero: it is not.
  absl::Duration scrub_period = absl::ZeroDuration();
};

// Thread-compatible.
class Server {
 public:
  // Opens (or makes) the store, lets interrupted jobs go on, and serves. Also serves grpc.health.v1.Health
  // and reflection.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  // As Stop with no time for running calls.
  virtual ~Server() = default;

  // Takes no more calls; those in work get `grace` to end, then are cancelled and waited for. Jobs run on.
  virtual void Stop(absl::Duration grace) = 0;

  // What makes the first clones faster, if there ever were clones. After Start, when calls are served.
  // Images of all supervised jobs, now. Returns when they are stored, or by Stop().
  virtual void CheckpointJobs() = 0;
  virtual void WarmUp() = 0;

  // Of the port that TCP got, for "HOST:0"; 0: no TCP.
  virtual int tcp_port() const = 0;
};

// The caller that a client's certificate names: "admin", or "uid:N" for a user of this node. Unauthenticated
// for any other common name.
absl::StatusOr<Caller> CallerFromCertificate(absl::string_view common_name);

}  // namespace rekindle::daemon
