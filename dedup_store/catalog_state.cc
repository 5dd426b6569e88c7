#include "dedup_store/catalog_state.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace rekindle::store {

namespace {

constexpr size_t kTransactionBytes = 256 << 10;  // of those that Describe gives
constexpr uint64_t kChangeBytes = 60;            // about what a change takes that has no strings

uint64_t NextOwner() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

CatalogState::DigestKey KeyOfDigest(const ImageRecord& record) {
  absl::string_view hex = record.info.digest;
  absl::ConsumePrefix(&hex, "sha256:");
  return {BytesOfHex(hex), record.id};
}

absl::Status BadChange(CatalogChange kind) {
  return absl::DataLossError(
      absl::StrCat("a change of kind ", static_cast<int>(kind), " in the catalog is damaged"));
}

}  // namespace

void AppendChange(CatalogChange kind, absl::string_view body, Encoder& out) {
  out.U8(static_cast<uint8_t>(kind));
  out.String(body);
}

std::string EncodeId(uint64_t id) {
  Encoder e;
  e.U64(id);
  return e.Take();
}

CatalogState::CatalogState() : owner_(NextOwner()) {}

CatalogState::CatalogState(const CatalogState& other)
    : owner_(NextOwner()),
      images_(other.images_),
      references_(other.references_),
      digests_(other.digests_),
      packs_(other.packs_),
      dead_(other.dead_),
      indexes_(other.indexes_),
      next_image_id_(other.next_image_id_),
      described_bytes_(other.described_bytes_) {}

absl::Status CatalogState::Apply(CatalogChange kind, absl::string_view body) {
  auto id = [&]() -> absl::StatusOr<uint64_t> {
    Decoder in(body);
    uint64_t value = in.U64();
    if (!in.AtEnd()) return BadChange(kind);
    return value;
  };
  const auto put = [this](auto& table, const auto& record) {
    if (table.Find(record.id) == nullptr) described_bytes_ += kChangeBytes;
    table.Put(record.id, record, owner_);
  };
  const auto erase = [this](auto& table, uint64_t record) {
    if (table.Find(record) != nullptr) described_bytes_ -= kChangeBytes;
    table.Erase(record, owner_);
  };
  switch (kind) {
    case CatalogChange::kPutImage: {
      RK_ASSIGN_OR_RETURN(ImageRecord record, ImageRecord::Decode(body));
      PutImage(std::move(record), body.size());
      return absl::OkStatus();
    }
    case CatalogChange::kDeleteImage: {
      RK_ASSIGN_OR_RETURN(uint64_t image, id());
      DeleteImage(image);
      return absl::OkStatus();
    }
    case CatalogChange::kNextImageId: {
      RK_ASSIGN_OR_RETURN(next_image_id_, id());
      return absl::OkStatus();
    }
    case CatalogChange::kPutPack: {
      RK_ASSIGN_OR_RETURN(PackRecord record, PackRecord::Decode(body));
      put(packs_, record);
      return absl::OkStatus();
    }
    case CatalogChange::kDeletePack: {
      RK_ASSIGN_OR_RETURN(uint64_t pack, id());
      erase(packs_, pack);
      DeleteDead(pack);
      return absl::OkStatus();
    }
    case CatalogChange::kPutDead: {
      if (body.size() < sizeof(uint64_t)) return BadChange(kind);
      const uint64_t pack = Decoder(body).U64();
      RK_ASSIGN_OR_RETURN(DeadRecord record, DeadRecord::Decode(body.substr(sizeof(uint64_t))));
      DeleteDead(pack);
      dead_.Put(pack,
                {std::make_shared<const DeadRecord>(std::move(record)), static_cast<uint32_t>(body.size())},
                owner_);
      described_bytes_ += body.size() + 2;
      return absl::OkStatus();
    }
    case CatalogChange::kPutIndex: {
      RK_ASSIGN_OR_RETURN(IndexRecord record, IndexRecord::Decode(body));
      put(indexes_, record);
      return absl::OkStatus();
    }
    case CatalogChange::kDeleteIndex: {
      RK_ASSIGN_OR_RETURN(uint64_t index, id());
      erase(indexes_, index);
      return absl::OkStatus();
    }
  }
  return BadChange(kind);
}

absl::Status CatalogState::Replay(absl::string_view changes) {
  Decoder in(changes);
  while (in.remaining() > 0) {
    const auto kind = static_cast<CatalogChange>(in.U8());
    const absl::string_view body = in.View(in.Varint());
    if (!in.ok()) return BadChange(kind);
    RK_RETURN_IF_ERROR(Apply(kind, body));
  }
  return absl::OkStatus();
}

void CatalogState::Describe(const std::function<void(absl::string_view)>& transaction) const {
  Encoder changes;
  auto add = [&](CatalogChange kind, absl::string_view body) {
    AppendChange(kind, body, changes);
    if (changes.out().size() >= kTransactionBytes) {
      transaction(changes.out());
      changes = Encoder();
    }
    return true;
  };
  add(CatalogChange::kNextImageId, EncodeId(next_image_id_));
  images_.Scan(
      0, [&](uint64_t, const Image& image) { return add(CatalogChange::kPutImage, image.record->Encode()); });
  packs_.Scan(
      0, [&](uint64_t, const PackRecord& record) { return add(CatalogChange::kPutPack, record.Encode()); });
  dead_.Scan(0, [&](uint64_t pack, const Dead& dead) {
    return add(CatalogChange::kPutDead, EncodeId(pack) + dead.record->Encode());
  });
  indexes_.Scan(
      0, [&](uint64_t, const IndexRecord& record) { return add(CatalogChange::kPutIndex, record.Encode()); });
  if (!changes.out().empty()) transaction(changes.out());
}

void CatalogState::PutImage(ImageRecord record, size_t encoded_bytes) {
  DeleteImage(record.id);
  if (const uint64_t* named = references_.Find(record.info.reference)) DeleteImage(uint64_t{*named});
  references_.Put(record.info.reference, record.id, owner_);
  digests_.Put(KeyOfDigest(record), 0, owner_);
  described_bytes_ += encoded_bytes + 3;
  const uint64_t id = record.id;
  images_.Put(id,
              {std::make_shared<const ImageRecord>(std::move(record)), static_cast<uint32_t>(encoded_bytes)},
              owner_);
}

void CatalogState::DeleteImage(uint64_t id) {
  const Image* found = images_.Find(id);
  if (found == nullptr) return;
  const Image image = *found;
  described_bytes_ -= image.encoded_bytes + 3;
  references_.Erase(image.record->info.reference, owner_);
  digests_.Erase(KeyOfDigest(*image.record), owner_);
  images_.Erase(id, owner_);
}

void CatalogState::DeleteDead(uint64_t pack_id) {
  const Dead* found = dead_.Find(pack_id);
  if (found == nullptr) return;
  described_bytes_ -= found->encoded_bytes + 2;
  dead_.Erase(pack_id, owner_);
}

}  // namespace rekindle::store
