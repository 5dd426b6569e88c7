#include "cli/tls_probe.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>
#include <thread>

namespace rekindle::cli {
namespace {

constexpr int kPatienceSeconds = 5, kNapMs = 10;
constexpr timeval kPatience = {kPatienceSeconds, 0};
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

struct Free {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL* connection) const { ::SSL_free(connection); }
};

// TLS's own word, after a call that has failed.
bool IsAlert() { return ERR_GET_REASON(::ERR_peek_error()) >= SSL_AD_REASON_OFFSET; }

TlsEnd Probe(const std::string& host, const std::string& certificate, const std::string& key) {
  const std::unique_ptr<SSL_CTX, Free> context(::SSL_CTX_new(::TLS_client_method()));
  if (context == nullptr || ::SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) != 1 ||
      ::SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      ::SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof kHttp2) != 0) {
    return TlsEnd::kBefore;
  }
  const std::unique_ptr<SSL, Free> connection(::SSL_new(context.get()));
  BIO* const socket = ::BIO_new_connect(host.c_str());
  if (connection == nullptr || socket == nullptr) {
    ::BIO_free(socket);
    return TlsEnd::kBefore;
  }
  ::SSL_set_bio(connection.get(), socket, socket);  // the connection's now
  if (::BIO_do_connect_retry(socket, kPatienceSeconds, kNapMs) != 1) return TlsEnd::kBefore;
  const int descriptor = ::SSL_get_fd(connection.get());
  if (::BIO_socket_nbio(descriptor, 0) != 1) return TlsEnd::kBefore;  // as it was for that
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  if (::SSL_connect(connection.get()) != 1) return IsAlert() ? TlsEnd::kAfter : TlsEnd::kBefore;
  // In TLS 1.3 this side is ready before the other one has looked at our certificate.
  char first;
  const int got = ::SSL_read(connection.get(), &first, 1);
  const bool waits = got <= 0 && ::SSL_get_error(connection.get(), got) == SSL_ERROR_WANT_READ;
  return got == 1 || waits ? TlsEnd::kNone : TlsEnd::kAfter;
}

}  // namespace

TlsEnd ProbeTls(const std::string& host, const std::string& certificate, const std::string& key) {
  TlsEnd end = TlsEnd::kBefore;
  // A write to a closed connection sends SIGPIPE to its thread, with which it goes.
  std::thread([&] {
    sigset_t broken;
    ::sigemptyset(&broken);
    ::sigaddset(&broken, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken, nullptr);
    end = Probe(host, certificate, key);
  }).join();
  return end;
}

}  // namespace rekindle::cli
