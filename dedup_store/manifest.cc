#include "dedup_store/manifest.h"

#include <zstd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/coding.h"

namespace rekindle::store {

namespace {

constexpr char kManifestMagic[4] = {'R', 'K', 'M', '1'};
constexpr uint64_t kMaxManifestBytes = uint64_t{4} << 30;
constexpr uint64_t kMaxPage = uint64_t{1} << 52;

// Each extent: gap since the end of the last, length with the zero bit, then pack and page relative to what a
// continued run would have.
void EncodeExtents(const std::vector<Extent>& extents, Encoder& out) {
  out.Varint(extents.size());
  uint64_t next_page = 0;
  uint32_t pack = 0;
  int64_t next_pack_page = 0;
  for (const Extent& e : extents) {
    out.Varint(e.page - next_page);
    out.Varint(e.pages << 1 | (e.zero() ? 1 : 0));
    next_page = e.page + e.pages;
    if (e.zero()) continue;
    out.Signed(static_cast<int64_t>(e.pack) - static_cast<int64_t>(pack));
    out.Signed(static_cast<int64_t>(e.pack_page) - next_pack_page);
    pack = e.pack;
    next_pack_page = static_cast<int64_t>(e.pack_page) + static_cast<int64_t>(e.pages);
  }
}

bool DecodeExtents(Decoder& in, size_t pack_count, std::vector<Extent>& extents) {
  uint64_t count = in.Varint();
  if (!in.ok() || count > in.remaining()) return false;
  extents.reserve(count);
  uint64_t next_page = 0;
  int64_t pack = 0;
  int64_t next_pack_page = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Extent e;
    uint64_t gap = in.Varint();
    uint64_t pages_and_zero = in.Varint();
    e.pages = pages_and_zero >> 1;
    if (!in.ok() || gap > kMaxPage || e.pages == 0 || e.pages > kMaxPage) return false;
    e.page = next_page + gap;
    next_page = e.page + e.pages;
    if (next_page > kMaxPage) return false;
    if (!(pages_and_zero & 1)) {
      int64_t pack_step = in.Signed();
      int64_t page_step = in.Signed();
      constexpr int64_t kMaxStep = int64_t{1} << 33;
      if (!in.ok() || std::max(std::abs(pack_step), std::abs(page_step)) > kMaxStep) return false;
      pack += pack_step;
      int64_t first = next_pack_page + page_step;
      next_pack_page = first + static_cast<int64_t>(e.pages);
      if (pack < 0 || pack >= static_cast<int64_t>(pack_count)) return false;
      if (first < 0 || next_pack_page > int64_t{0xffffffff}) return false;
      e.pack = static_cast<uint32_t>(pack);
      e.pack_page = static_cast<uint32_t>(first);
    }
    extents.push_back(e);
  }
  return true;
}

absl::Status DamagedManifest(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the manifest is damaged: ", what));
}

}  // namespace

void Manifest::DropUnusedPacks() {
  constexpr uint32_t kUnused = ~uint32_t{0};
  std::vector<uint32_t> position(packs.size(), kUnused);
  std::vector<uint64_t> kept;
  auto visit = [&](std::vector<Extent>& extents) {
    for (Extent& e : extents) {
      if (e.zero()) continue;
      if (position[e.pack] == kUnused) {
        position[e.pack] = static_cast<uint32_t>(kept.size());
        kept.push_back(packs[e.pack]);
      }
      e.pack = position[e.pack];
    }
  };
  for (PagedObject& object : objects) visit(object.extents);
  visit(blob_stream);
  packs = std::move(kept);
}

std::string Manifest::Encode() const {
  Encoder plain;
  plain.Varint(packs.size());
  for (uint64_t id : packs) plain.U64(id);
  plain.Varint(objects.size());
  for (const PagedObject& object : objects) {
    plain.String(object.name);
    EncodeExtents(object.extents, plain);
  }
  plain.Varint(blobs.size());
  for (const Blob& blob : blobs) {
    plain.String(blob.name);
    plain.Varint(blob.offset);
    plain.Varint(blob.bytes);
    plain.Raw(&blob.digest, sizeof blob.digest);
  }
  EncodeExtents(blob_stream, plain);

  Encoder out;
  out.Raw(kManifestMagic, sizeof kManifestMagic);
  out.U64(plain.out().size());
  std::string compressed(ZSTD_compressBound(plain.out().size()), '\0');
  size_t n = ZSTD_compress(compressed.data(), compressed.size(), plain.out().data(), plain.out().size(), 3);
  out.Raw(compressed.data(), ZSTD_isError(n) ? 0 : n);
  return out.Take();
}

absl::StatusOr<Manifest> Manifest::Decode(absl::string_view encoded) {
  Decoder head(encoded);
  char magic[4];
  head.Raw(magic, sizeof magic);
  uint64_t size = head.U64();
  if (!head.ok() || memcmp(magic, kManifestMagic, sizeof magic) != 0)
    return DamagedManifest("it has no magic");
  if (size > kMaxManifestBytes) return DamagedManifest("its length is out of range");
  absl::string_view body = encoded.substr(encoded.size() - head.remaining());
  if (ZSTD_getFrameContentSize(body.data(), body.size()) != size)
    return DamagedManifest("its length is wrong");
  std::string plain(size, '\0');
  size_t n = ZSTD_decompress(plain.data(), plain.size(), body.data(), body.size());
  if (ZSTD_isError(n) || n != size) return DamagedManifest("it does not decompress");

  Decoder in(plain);
  Manifest m;
  uint64_t packs = in.Varint();
  if (!in.ok() || packs > in.remaining() / 8) return DamagedManifest("bad list of packs");
  for (uint64_t i = 0; i < packs; ++i) m.packs.push_back(in.U64());
  uint64_t objects = in.Varint();
  if (!in.ok() || objects > in.remaining()) return DamagedManifest("bad list of objects");
  for (uint64_t i = 0; i < objects; ++i) {
    PagedObject object;
    object.name = in.String();
    if (!DecodeExtents(in, m.packs.size(), object.extents))
      return DamagedManifest("bad extents of an object");
    m.objects.push_back(std::move(object));
  }
  uint64_t blobs = in.Varint();
  if (!in.ok() || blobs > in.remaining()) return DamagedManifest("bad list of blobs");
  for (uint64_t i = 0; i < blobs; ++i) {
    Blob blob;
    blob.name = in.String();
    blob.offset = in.Varint();
    blob.bytes = in.Varint();
    in.Raw(&blob.digest, sizeof blob.digest);
    m.blobs.push_back(std::move(blob));
  }
  if (!DecodeExtents(in, m.packs.size(), m.blob_stream) || !in.AtEnd())
    return DamagedManifest("bad extents of the blobs");
  uint64_t stream_bytes =
      m.blob_stream.empty() ? 0 : (m.blob_stream.back().page + m.blob_stream.back().pages) * kPageSize;
  for (const Blob& blob : m.blobs) {
    if (blob.offset > stream_bytes || blob.bytes > stream_bytes - blob.offset)
      return DamagedManifest("a blob is out of range");
  }
  return m;
}

std::array<uint8_t, 32> Manifest::ContentDigest(const IdentityOf& identity_of) const {
  Sha256 sha;
  Encoder buffer;
  auto flush = [&](size_t limit) {
    if (buffer.out().size() < limit) return;
    sha.Update(buffer.out().data(), buffer.out().size());
    buffer = Encoder();
  };
  auto add_pages = [&](const std::vector<Extent>& extents) {
    for (size_t i = 0; i < extents.size();) {
      // Runs are made anew, since where one extent ends depends on where the pages are kept.
      size_t end = i + 1;
      uint64_t pages = extents[i].pages;
      while (end < extents.size() && extents[end].zero() == extents[i].zero() &&
             extents[end].page == extents[i].page + pages) {
        pages += extents[end++].pages;
      }
      buffer.U64(extents[i].page);
      buffer.U64(pages << 1 | (extents[i].zero() ? 1 : 0));
      for (; i < end; ++i) {
        for (uint64_t p = 0; p < extents[i].pages && !extents[i].zero(); ++p) {
          PageIdentity page = identity_of(extents[i].pack, extents[i].pack_page + static_cast<uint32_t>(p));
          buffer.Raw(&page.frame, sizeof page.frame);
          buffer.U32(page.index);
          flush(1 << 16);
        }
      }
    }
    buffer.U64(~uint64_t{0});
  };

  buffer.String("rekindle image 2");
  std::vector<const PagedObject*> by_name;
  for (const PagedObject& object : objects) by_name.push_back(&object);
  std::sort(by_name.begin(), by_name.end(), [](auto* a, auto* b) { return a->name < b->name; });
  buffer.U64(by_name.size());
  for (const PagedObject* object : by_name) {
    buffer.String(object->name);
    add_pages(object->extents);
  }
  std::vector<const Blob*> blobs_by_name;
  for (const Blob& blob : blobs) blobs_by_name.push_back(&blob);
  std::sort(blobs_by_name.begin(), blobs_by_name.end(), [](auto* a, auto* b) { return a->name < b->name; });
  buffer.U64(blobs_by_name.size());
  for (const Blob* blob : blobs_by_name) {
    buffer.String(blob->name);
    buffer.U64(blob->bytes);
    buffer.Raw(&blob->digest, sizeof blob->digest);
    flush(1 << 16);
  }
  flush(0);
  return sha.Finish();
}

void AppendExtent(std::vector<Extent>& extents, const Extent& extent) {
  if (!extents.empty()) {
    Extent& last = extents.back();
    if (last.page + last.pages == extent.page && last.pack == extent.pack &&
        (extent.zero() || last.pack_page + last.pages == extent.pack_page)) {
      last.pages += extent.pages;
      return;
    }
  }
  extents.push_back(extent);
}

std::vector<Extent>::const_iterator FirstBehind(const std::vector<Extent>& extents, uint64_t page) {
  return std::upper_bound(extents.begin(), extents.end(), page,
                          [](uint64_t p, const Extent& e) { return p < e.page + e.pages; });
}

std::string DigestText(const std::array<uint8_t, 32>& digest) {
  return absl::StrCat("sha256:", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(digest.data()), digest.size())));
}

}  // namespace rekindle::store
