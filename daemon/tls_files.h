// The files of TLS, checked where they are read: of one that is wrong gRPC tells only that it reaches nobody.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

}  // namespace rekindle::daemon
