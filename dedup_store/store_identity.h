// The file FORMAT, which makes a folder a store.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/format.h"
#include "dedup_store/hashing.h"

namespace rekindle::store {

struct StoreIdentity {
  StoreUuid uuid{};
  StoreSeed seed{};     // secret: of the fingerprints
  std::string problem;  // not empty: FORMAT is damaged, and this was taken from a pack's header
};

// 32 hex digits of its UUID.
std::string IdOf(const StoreIdentity& identity);

std::string FormatPath(const std::string& store_path);
// FailedPrecondition: the folder is no store, or one of another format. DataLoss: FORMAT is damaged, and
// there is no pack to tell what was in it.
absl::StatusOr<StoreIdentity> ReadIdentity(const std::string& store_path);
// What the file FORMAT tells, of whichever version. DataLoss: it is damaged.
absl::StatusOr<StoreUuid> ReadUuid(const std::string& store_path);
StoreIdentity NewIdentity();
// Durable, and all or nothing.
absl::Status WriteIdentity(const std::string& store_path, const StoreIdentity& identity);
// As WriteIdentity, unless there is one: of several nodes that make one store at the same moment the first
// one's is the store's. OK either way.
// What FORMAT is called before then begins so.
inline constexpr char kFirstIdentityMark[] = "FORMAT.new-";
absl::Status WriteFirstIdentity(const std::string& store_path, const StoreIdentity& identity);

absl::Status NotAStore(const std::string& path, absl::string_view why);

}  // namespace rekindle::store
