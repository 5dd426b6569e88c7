// The files of TLS, checked where they are read: of one that is wrong gRPC tells only that it reaches nobody.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

// A file, and how messages call it ("--tls-key").
struct TlsFileName {
  absl::string_view option;
  std::string path;
};

// What is in them.
struct TlsFiles {
  std::string ca, certificate, key;
};

// InvalidArgument: one holds nothing of the kind, or its key has a passphrase. FailedPrecondition: the key is
// another certificate's. Or why one can't be read.
absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsFileName& ca, const TlsFileName& certificate,
                                      const TlsFileName& key);

// "has expired on …", "is not valid before …", of the first of these PEM certificates; empty: it is valid at
// `when`.
std::string TroubleWithDates(const std::string& certificates, absl::Time when);

}  // namespace rekindle::daemon
