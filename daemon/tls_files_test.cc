#include "daemon/tls_files.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"

namespace rekindle::daemon {
namespace {

std::string TakeText(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

class TlsFilesTest : public testing::Test {
 protected:
  TlsFilesTest() {
    Write("own", EVP_EC_gen("P-256"));
    Write("other", EVP_EC_gen("P-256"));
  }

  std::string path(const std::string& name) const { return absl::StrCat(folder_->path(), "/", name); }

  absl::Status Read(const std::string& ca, const std::string& certificate, const std::string& key) const {
    return ReadTlsFiles({"--ca", path(ca)}, {"--cert", path(certificate)}, {"--key", path(key)}).status();
  }

 private:
  // A key, without and with a passphrase, its certificate, and a request for one.
  void Write(const std::string& name, EVP_PKEY* key) {
    X509* certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, certificate);
    WriteText(name + ".pem", TakeText(bio));
    X509_REQ* request = X509_to_X509_REQ(certificate, key, EVP_sha256());
    bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509_REQ(bio, request);
    WriteText(name + ".csr", TakeText(bio));
    bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    WriteText(name + ".key", TakeText(bio));
    bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PKCS8PrivateKey(bio, key, EVP_aes_128_cbc(), "secret", 6, nullptr, nullptr);
    WriteText(name + ".locked", TakeText(bio));
    X509_REQ_free(request);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  void WriteText(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(path(name), text).ok());
  }

  const absl::StatusOr<TemporaryDirectory> folder_ = TemporaryDirectory::Make("/tmp", "tls-files-test.");
};

TEST_F(TlsFilesTest, FilesThatBelongTogether) {
  EXPECT_TRUE(Read("other.pem", "own.pem", "own.key").ok());
  auto files =
      ReadTlsFiles({"--ca", path("other.pem")}, {"--cert", path("own.pem")}, {"--key", path("own.key")});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->ca, *ReadFile(path("other.pem")));
  EXPECT_EQ(files->certificate, *ReadFile(path("own.pem")));
  EXPECT_EQ(files->key, *ReadFile(path("own.key")));
}

TEST_F(TlsFilesTest, WhenACertificateIsValid) {
  const std::string pem = *ReadFile(path("own.pem"));  // for an hour
  EXPECT_EQ(TroubleWithDates(pem, absl::Now() + absl::Minutes(1)), "");
  EXPECT_TRUE(absl::StartsWith(TroubleWithDates(pem, absl::Now() + absl::Hours(2)), "has expired on "));
  EXPECT_TRUE(absl::StartsWith(TroubleWithDates(pem, absl::Now() - absl::Hours(1)), "is not valid before "));
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificate) {
  const absl::Status status = Read("own.pem", "own.pem", "other.key");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), path("other.key"))) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), path("own.pem"))) << status;
}

TEST_F(TlsFilesTest, FilesOfAnotherKind) {
  for (const auto& [ca, certificate, key, named] :
       std::initializer_list<std::tuple<const char*, const char*, const char*, const char*>>{
           {"own.csr", "own.pem", "own.key", "--ca"},
           {"own.key", "own.pem", "own.key", "--ca"},
           {"own.pem", "own.csr", "own.key", "--cert"},
           {"own.pem", "own.pem", "own.pem", "--key"},
           {"own.pem", "own.pem", "own.locked", "passphrase"}}) {
    const absl::Status status = Read(ca, certificate, key);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << status;
  }
}

TEST_F(TlsFilesTest, AFileThatIsNotThere) {
  const absl::Status status = Read("nothing", "own.pem", "own.key");
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "--ca")) << status;
}

}  // namespace
}  // namespace rekindle::daemon
