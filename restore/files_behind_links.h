// Symbolic links that stand where a job had files, or folders on the way to them.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_rights.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "restore/compatibility.h"

namespace rekindle::restore {

// What CheckLinks says of one: whoever put it there can take it away.
inline constexpr char kUntrustedLink[] = "is reached by a symbolic link now that is not trusted";

// Of the files in `image` that had no name any more, and that CRIU makes again for a moment: the names they
// had.
absl::StatusOr<std::set<std::string>> NamesOfRemovedFiles(const store::ImageReader& image);

// The names of the files that the job had open or mapped led there without one. PermissionDenied: one does
// not, by a link that neither root nor `user` (nothing: the daemon's own) has made, or not where nobody else
// may change it: the job would go on with what a stranger chose. Those that are `replaced` it does not get.
// Of `removed` names the folders are looked at; a user's are made by his rights, whatever leads there.
// CRIU is kept to the same when it opens them (criu/trusted_links.h), which is when it counts; here it is
// told before anything has happened. Thread-safe.
absl::Status CheckLinks(const v1::JobManifest& manifest, const std::optional<Owner>& user, SeenFrom place,
                        const std::set<std::string>& replaced, const std::set<std::string>& removed = {},
                        CheckedFor whom = CheckedFor::kRestore);

}  // namespace rekindle::restore
