#include "daemon/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

absl::StatusOr<std::string> Read(const TlsFileName& name) {
  absl::StatusOr<std::string> content = ReadFile(name.path);
  if (!content.ok()) return Annotate(content.status(), name.option);
  return content;
}

Bio Over(const std::string& pem) { return Bio(::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

// The empty passphrase, so that nobody is asked for one at the terminal.
void* NoPassphrase() {
  static char empty[] = "";
  return empty;
}

absl::Status HoldsNo(const TlsFileName& name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name.option, ": ", name.path, " holds no PEM ", what));
}

absl::StatusOr<Certificate> FirstCertificate(const TlsFileName& name, const std::string& pem) {
  const Bio bio = Over(pem);
  Certificate certificate(::PEM_read_bio_X509(bio.get(), nullptr, nullptr, NoPassphrase()));
  ::ERR_clear_error();
  if (certificate == nullptr) return HoldsNo(name, "certificate");
  return certificate;
}

std::string DateOf(const ASN1_TIME* time) {
  const Bio bio(::BIO_new(::BIO_s_mem()));
  ::ASN1_TIME_print(bio.get(), time);
  char* text = nullptr;
  const long size = ::BIO_get_mem_data(bio.get(), &text);
  return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
}

}  // namespace

std::string TroubleWithDates(const std::string& certificates, absl::Time when) {
  const absl::StatusOr<Certificate> first = FirstCertificate({}, certificates);
  if (!first.ok()) return "";
  time_t then = absl::ToTimeT(when);
  // Negative: it is earlier; 0: it can't be read.
  const ASN1_TIME* begins = ::X509_get0_notBefore(first->get());
  const ASN1_TIME* ends = ::X509_get0_notAfter(first->get());
  if (::X509_cmp_time(ends, &then) < 0) return absl::StrCat("has expired on ", DateOf(ends));
  if (::X509_cmp_time(begins, &then) > 0) return absl::StrCat("is not valid before ", DateOf(begins));
  return "";
}

absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsFileName& ca, const TlsFileName& certificate,
                                      const TlsFileName& key) {
  TlsFiles files;
  RK_ASSIGN_OR_RETURN(files.ca, Read(ca));
  RK_ASSIGN_OR_RETURN(files.certificate, Read(certificate));
  RK_ASSIGN_OR_RETURN(files.key, Read(key));
  RK_RETURN_IF_ERROR(FirstCertificate(ca, files.ca).status());
  RK_ASSIGN_OR_RETURN(const Certificate own, FirstCertificate(certificate, files.certificate));
  const Bio bio = Over(files.key);
  const Key parsed(::PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, NoPassphrase()));
  const bool fits = parsed != nullptr && ::X509_check_private_key(own.get(), parsed.get()) == 1;
  ::ERR_clear_error();
  if (fits) return files;
  if (parsed != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(key.option, ": the key in ", key.path, " is not that of the certificate in ",
                     certificate.path, " (", certificate.option, "): name files that belong together"));
  }
  if (absl::StrContains(files.key, "ENCRYPTED")) {
    return absl::InvalidArgumentError(
        absl::StrCat(key.option, ": the key in ", key.path,
                     " has a passphrase, which nobody is asked for: write it without one (openssl pkey)"));
  }
  return HoldsNo(key, "private key");
}

}  // namespace rekindle::daemon
