#include "cli/tls_probe.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/host_port.h"

namespace rekindle::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);  // in all, but for the look-up of a name
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

struct Free {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL* connection) const { ::SSL_free(connection); }
};

// TLS's own word, after a call that has failed.
bool IsAlert() { return ERR_GET_REASON(::ERR_peek_error()) >= SSL_AD_REASON_OFFSET; }

// Has OpenSSL go on, on a socket that does not wait, until it is done with a step, has failed, or it takes
// too long: then SSL_get_error still says what it waits for.
int Carry(SSL* connection, const Deadline& deadline, int (*step)(SSL*)) {
  for (;;) {
    const int done = step(connection);
    const int error = ::SSL_get_error(connection, done);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return done;
    pollfd socket{::SSL_get_fd(connection),
                  static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    const int ready = ::poll(&socket, 1, deadline.left_ms());
    if (ready == 0 || (ready < 0 && errno != EINTR)) return done;
  }
}

bool Connect(BIO* socket, const Deadline& deadline) {
  ::BIO_set_nbio(socket, 1);
  while (::BIO_do_connect(socket) != 1) {
    if (!::BIO_should_retry(socket)) return false;
    pollfd descriptor{static_cast<int>(::BIO_get_fd(socket, nullptr)), POLLOUT, 0};
    const int ready = ::poll(&descriptor, 1, deadline.left_ms());
    if (ready == 0 || (ready < 0 && errno != EINTR)) return false;
  }
  return true;
}

int ReadOne(SSL* connection) {
  char first;
  return ::SSL_read(connection, &first, 1);
}

TlsEnd Probe(const std::string& host, const TlsProbeFiles& files) {
  const std::unique_ptr<SSL_CTX, Free> context(::SSL_CTX_new(::TLS_client_method()));
  if (context == nullptr || ::SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr) != 1 ||
      ::SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1 ||
      ::SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      ::SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof kHttp2) != 0) {
    return TlsEnd::kBefore;
  }
  // Who we are is for the daemon alone.
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  const std::unique_ptr<SSL, Free> connection(::SSL_new(context.get()));
  BIO* const socket = ::BIO_new_connect(host.c_str());
  if (connection == nullptr || socket == nullptr ||
      ::SSL_set1_host(connection.get(), SplitHostPort(host).host.c_str()) != 1) {
    ::BIO_free(socket);
    return TlsEnd::kBefore;
  }
  ::SSL_set_bio(connection.get(), socket, socket);  // the connection's now
  // As gRPC, which takes one that is vouched for by any of the file's certificates.
  ::X509_VERIFY_PARAM_set_flags(::SSL_get0_param(connection.get()), X509_V_FLAG_PARTIAL_CHAIN);
  const Deadline deadline(kPatience);
  if (!Connect(socket, deadline)) return TlsEnd::kBefore;
  ::ERR_clear_error();
  if (Carry(connection.get(), deadline, ::SSL_connect) != 1)
    return IsAlert() ? TlsEnd::kAfter : TlsEnd::kBefore;
  // In TLS 1.3 this side is ready before the other one has looked at our certificate.
  const int got = Carry(connection.get(), deadline, ReadOne);
  const bool waits = got <= 0 && ::SSL_get_error(connection.get(), got) == SSL_ERROR_WANT_READ;
  return got == 1 || waits ? TlsEnd::kNone : TlsEnd::kAfter;
}

}  // namespace

TlsEnd ProbeTls(const std::string& host, const TlsProbeFiles& files) {
  TlsEnd end = TlsEnd::kBefore;
  // A write to a closed connection sends SIGPIPE to its thread, with which it goes.
  std::thread([&] {
    sigset_t broken;
    ::sigemptyset(&broken);
    ::sigaddset(&broken, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken, nullptr);
    end = Probe(host, files);
  }).join();
  return end;
}

}  // namespace rekindle::cli
