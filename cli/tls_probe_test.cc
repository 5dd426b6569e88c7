#include "cli/tls_probe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/unique_fd.h"

namespace rekindle::cli {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_NAME* name) const { X509_NAME_free(name); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* connection) const { SSL_free(connection); }
  void operator()(FILE* file) const { std::fclose(file); }
};
template <typename T>
using Own = std::unique_ptr<T, Free>;

class TlsProbeTest : public testing::Test {
 protected:
  // What a server that takes any certificate has seen of one connection.
  struct Seen {
    TlsEnd end = TlsEnd::kBefore;
    bool certificate = false;
  };

  void SetUp() override {
    for (const char* name : {"server", "client", "stranger"}) Write(name);
    Write("pinned", "stranger");
  }
  std::string path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }

  Seen Probe(const std::string& ca, const std::string& served = "server") const {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    Seen seen;
    std::thread server(
        [&] { seen.certificate = Serve(UniqueFd(::accept(listener.get(), nullptr, nullptr)), served); });
    seen.end = ProbeTls(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                        {path(ca), path("client.pem"), path("client.key")});
    server.join();
    return seen;
  }

 private:
  // A key, and a certificate with which it, or the key of `issuer`, vouches for it.
  void Write(const std::string& name, const std::string& issuer = "") {
    const Own<EVP_PKEY> key(EVP_EC_gen("P-256"));
    const Own<X509> certificate(X509_new());
    X509_set_version(certificate.get(), X509_VERSION_3);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_NAME* const called = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(called, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    Own<EVP_PKEY> other;
    if (!issuer.empty()) {
      other.reset(PEM_read_PrivateKey(Own<FILE>(std::fopen(path(issuer + ".key").c_str(), "r")).get(),
                                      nullptr, nullptr, nullptr));
    }
    const Own<X509_NAME> signer(X509_NAME_new());
    X509_NAME_add_entry_by_txt(signer.get(), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>((other ? issuer : name).c_str()), -1,
                               -1, 0);
    X509_set_issuer_name(certificate.get(), signer.get());
    const Own<X509_EXTENSION> at(X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1"));
    X509_add_ext(certificate.get(), at.get(), -1);
    X509_sign(certificate.get(), other ? other.get() : key.get(), EVP_sha256());
    PEM_write_X509(Own<FILE>(std::fopen(path(name + ".pem").c_str(), "w")).get(), certificate.get());
    PEM_write_PrivateKey(Own<FILE>(std::fopen(path(name + ".key").c_str(), "w")).get(), key.get(), nullptr,
                         nullptr, 0, nullptr, nullptr);
  }

  // Was a certificate shown? Says one byte then.
  bool Serve(const UniqueFd& accepted, const std::string& name) const {
    const Own<SSL_CTX> context(SSL_CTX_new(TLS_server_method()));
    SSL_CTX_use_certificate_chain_file(context.get(), path(name + ".pem").c_str());
    SSL_CTX_use_PrivateKey_file(context.get(), path(name + ".key").c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
    const Own<SSL> connection(SSL_new(context.get()));
    SSL_set_fd(connection.get(), accepted.get());
    const bool made = SSL_accept(connection.get()) == 1;
    if (made) SSL_write(connection.get(), "x", 1);
    return Own<X509>(SSL_get1_peer_certificate(connection.get())) != nullptr;
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk-tls-probe-").value();
};

TEST_F(TlsProbeTest, TheCertificateIsForWhoIsVouchedForAlone) {
  const Seen known = Probe("server.pem");
  EXPECT_EQ(known.end, TlsEnd::kNone);
  EXPECT_TRUE(known.certificate);
  const Seen unknown = Probe("stranger.pem");
  EXPECT_EQ(unknown.end, TlsEnd::kBefore);
  EXPECT_FALSE(unknown.certificate);
}

// As gRPC does.
TEST_F(TlsProbeTest, ACertificateThatAnotherHasSignedMayVouchForItself) {
  EXPECT_EQ(Probe("pinned.pem", "pinned").end, TlsEnd::kNone);
}

}  // namespace
}  // namespace rekindle::cli
