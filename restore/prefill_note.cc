#include "restore/prefill_note.h"

#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "base/parallel.h"
#include "base/status.h"
#include "dedup_store/coding.h"
#include "dedup_store/hashing.h"
#include "dedup_store/transposition.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;
using Chunk = PrefillNoteHead::Chunk;

constexpr char kNoteMagic[] = {'R', 'K', 'W', 'S', 'P', '\r', '\n', '\0'};
constexpr uint32_t kNoteVersion = 1;
struct Beginning {
  char magic[sizeof kNoteMagic];
  uint32_t version;
  uint32_t head_bytes;  // of all that comes before the chunks
};
static_assert(sizeof(Beginning) == 16);

constexpr size_t kNoteChunkBytes = PrefillNoteHead::kChunkPages * kPageSize;
constexpr size_t kMostHeadBytes = size_t{16} << 20;
constexpr uint64_t kMostPages = uint64_t{1} << 40;
// Most heads are no larger.
constexpr size_t kFirstRead = size_t{64} << 10;
constexpr int kNoteLevel = 1;
constexpr size_t kMostThreads = 4;

absl::Status Damaged() { return absl::DataLossError("the pages kept of its working set are damaged"); }

Sha256Digest DigestOf(absl::string_view bytes) {
  store::Sha256 sha;
  sha.Update(bytes.data(), bytes.size());
  return sha.Finish();
}

absl::string_view AsText(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t PagesOf(const std::vector<PrefillPlace>& places) {
  uint64_t pages = 0;
  for (const PrefillPlace& place : places) pages += place.pages;
  return pages;
}

size_t PlainBytes(uint64_t pages, size_t chunk) {
  return std::min(kNoteChunkBytes, pages * kPageSize - chunk * kNoteChunkBytes);
}

size_t ChunksOf(uint64_t pages) {
  return static_cast<size_t>((pages + PrefillNoteHead::kChunkPages - 1) / PrefillNoteHead::kChunkPages);
}

void EncodePlaces(const std::vector<PrefillPlace>& places, store::Encoder* encoder) {
  encoder->Varint(places.size());
  uint64_t page = 0, number = 0;
  for (const PrefillPlace& place : places) {
    const uint64_t first = place.address / kPageSize;
    encoder->Varint(static_cast<uint64_t>(place.pid));
    encoder->Signed(static_cast<int64_t>(first - page));
    encoder->Signed(static_cast<int64_t>(place.number - number));
    encoder->Varint(place.pages);
    page = first + place.pages;
    number = place.number + place.pages;
  }
}

bool DecodePlaces(store::Decoder* decoder, std::vector<PrefillPlace>* places) {
  constexpr size_t kLeastBytes = 4;
  const uint64_t count = decoder->Varint();
  if (!decoder->ok() || count > decoder->remaining() / kLeastBytes) return false;
  uint64_t page = 0, number = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t pid = decoder->Varint();
    const uint64_t first = page + static_cast<uint64_t>(decoder->Signed());
    const uint64_t first_number = number + static_cast<uint64_t>(decoder->Signed());
    const uint64_t pages = decoder->Varint();
    if (!decoder->ok() || pid > static_cast<uint64_t>(std::numeric_limits<pid_t>::max()) || pages == 0 ||
        pages > kMostPages || first > (~uint64_t{0} / kPageSize) - pages) {
      return false;
    }
    places->push_back({static_cast<pid_t>(pid), first * kPageSize, first_number, pages});
    page = first + pages;
    number = first_number + pages;
  }
  return true;
}

// One thread's.
class ChunkCompressor {
 public:
  ChunkCompressor() : zstd_(ZSTD_createCCtx()), planes_(new std::byte[kNoteChunkBytes]) {}
  ~ChunkCompressor() { ZSTD_freeCCtx(zstd_); }
  ChunkCompressor(const ChunkCompressor&) = delete;
  ChunkCompressor& operator=(const ChunkCompressor&) = delete;

  std::string Compress(absl::Span<const std::byte> plain, Chunk* chunk) {
    chunk->codec = Chunk::Codec::kRaw;
    std::string best(AsText(plain));
    Try(plain, Chunk::Codec::kZstd, &best, chunk);
    store::Transpose(plain.data(), planes_.get(), plain.size());
    Try({planes_.get(), plain.size()}, Chunk::Codec::kZstdOfPlanes, &best, chunk);
    chunk->stored_bytes = static_cast<uint32_t>(best.size());
    chunk->digest = DigestOf(best);
    return best;
  }

 private:
  void Try(absl::Span<const std::byte> bytes, Chunk::Codec codec, std::string* best, Chunk* chunk) {
    std::string out(ZSTD_compressBound(bytes.size()), '\0');
    const size_t n = ZSTD_compressCCtx(zstd_, out.data(), out.size(), bytes.data(), bytes.size(), kNoteLevel);
    if (ZSTD_isError(n) || n >= best->size()) return;
    out.resize(n);
    *best = std::move(out);
    chunk->codec = codec;
  }

  ZSTD_CCtx* const zstd_;
  const std::unique_ptr<std::byte[]> planes_;
};

// One thread's.
class ChunkLoader {
 public:
  explicit ChunkLoader(const store::NoteReader& note) : note_(note), zstd_(ZSTD_createDCtx()) {}
  ~ChunkLoader() { ZSTD_freeDCtx(zstd_); }
  ChunkLoader(const ChunkLoader&) = delete;
  ChunkLoader& operator=(const ChunkLoader&) = delete;

  absl::Status Load(const Chunk& chunk, uint64_t offset, absl::Span<std::byte> out) {
    const bool raw = chunk.codec == Chunk::Codec::kRaw;
    if (raw && chunk.stored_bytes != out.size()) return Damaged();
    if (!raw && stored_ == nullptr) stored_.reset(new std::byte[kNoteChunkBytes]);
    const absl::Span<std::byte> stored(raw ? out.data() : stored_.get(), chunk.stored_bytes);
    RK_RETURN_IF_ERROR(note_.ReadAt(offset, stored));
    if (DigestOf(AsText(stored)) != chunk.digest) return Damaged();
    if (raw) return absl::OkStatus();
    const bool planes = chunk.codec == Chunk::Codec::kZstdOfPlanes;
    if (planes && planes_ == nullptr) planes_.reset(new std::byte[kNoteChunkBytes]);
    const size_t n = ZSTD_decompressDCtx(zstd_, planes ? planes_.get() : out.data(), out.size(),
                                         stored.data(), stored.size());
    if (ZSTD_isError(n) || n != out.size()) return Damaged();
    if (planes) store::TransposeBack(planes_.get(), out.data(), out.size());
    return absl::OkStatus();
  }

 private:
  const store::NoteReader& note_;
  ZSTD_DCtx* const zstd_;
  std::unique_ptr<std::byte[]> stored_, planes_;
};

absl::StatusOr<std::string> ReadHead(const store::NoteReader& note) {
  if (note.bytes() < sizeof(Beginning)) return Damaged();
  std::string bytes(std::min<uint64_t>(note.bytes(), kFirstRead), '\0');
  auto part = [&bytes](size_t from) {
    return absl::Span<std::byte>(reinterpret_cast<std::byte*>(bytes.data()) + from, bytes.size() - from);
  };
  RK_RETURN_IF_ERROR(note.ReadAt(0, part(0)));
  Beginning beginning;
  memcpy(&beginning, bytes.data(), sizeof beginning);
  const size_t known = bytes.size();
  if (beginning.head_bytes < sizeof beginning || beginning.head_bytes > kMostHeadBytes ||
      beginning.head_bytes > note.bytes()) {
    return Damaged();
  }
  bytes.resize(beginning.head_bytes);
  if (known < bytes.size()) RK_RETURN_IF_ERROR(note.ReadAt(known, part(known)));
  return bytes;
}

}  // namespace

uint64_t PrefillNoteHead::pages() const { return PagesOf(recorded) + PagesOf(written); }

std::string PrefillNoteHead::Encode() const {
  store::Encoder encoder;
  encoder.Raw(image.data(), image.size());
  encoder.Raw(working_set.data(), working_set.size());
  EncodePlaces(recorded, &encoder);
  EncodePlaces(written, &encoder);
  encoder.Varint(chunks.size());
  for (const Chunk& chunk : chunks) {
    encoder.U8(static_cast<uint8_t>(chunk.codec));
    encoder.Varint(chunk.stored_bytes);
    encoder.Raw(chunk.digest.data(), chunk.digest.size());
  }
  const std::string content = encoder.Take();
  Beginning beginning{};
  memcpy(beginning.magic, kNoteMagic, sizeof kNoteMagic);
  beginning.version = kNoteVersion;
  beginning.head_bytes = static_cast<uint32_t>(sizeof beginning + content.size() + sizeof(Sha256Digest));
  std::string bytes(reinterpret_cast<const char*>(&beginning), sizeof beginning);
  bytes += content;
  const Sha256Digest digest = DigestOf(bytes);
  bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return bytes;
}

absl::StatusOr<PrefillNoteHead> PrefillNoteHead::Decode(absl::string_view bytes) {
  Beginning beginning;
  if (bytes.size() < sizeof beginning + sizeof(Sha256Digest)) return Damaged();
  memcpy(&beginning, bytes.data(), sizeof beginning);
  if (memcmp(beginning.magic, kNoteMagic, sizeof kNoteMagic) != 0 || beginning.head_bytes != bytes.size()) {
    return Damaged();
  }
  const absl::string_view covered = bytes.substr(0, bytes.size() - sizeof(Sha256Digest));
  const Sha256Digest digest = DigestOf(covered);
  if (memcmp(digest.data(), bytes.data() + covered.size(), digest.size()) != 0) return Damaged();
  if (beginning.version != kNoteVersion) {
    return absl::FailedPreconditionError("the pages kept of its working set are of another Rekindle");
  }
  PrefillNoteHead head;
  store::Decoder decoder(covered.substr(sizeof beginning));
  decoder.Raw(head.image.data(), head.image.size());
  decoder.Raw(head.working_set.data(), head.working_set.size());
  if (!decoder.ok() || !DecodePlaces(&decoder, &head.recorded) || !DecodePlaces(&decoder, &head.written)) {
    return Damaged();
  }
  const uint64_t pages = head.pages();
  const uint64_t count = decoder.Varint();
  if (!decoder.ok() || pages > kMostPages || count != ChunksOf(pages) || count > decoder.remaining()) {
    return Damaged();
  }
  for (uint64_t i = 0; i < count; ++i) {
    Chunk& chunk = head.chunks.emplace_back();
    const uint8_t codec = decoder.U8();
    const uint64_t stored = decoder.Varint();
    decoder.Raw(chunk.digest.data(), chunk.digest.size());
    if (!decoder.ok() || codec > static_cast<uint8_t>(Chunk::Codec::kZstdOfPlanes) || stored == 0 ||
        stored > PlainBytes(pages, i)) {
      return Damaged();
    }
    chunk.codec = static_cast<Chunk::Codec>(codec);
    chunk.stored_bytes = static_cast<uint32_t>(stored);
  }
  // Numbers that are written longer than they are: nobody wrote that.
  if (!decoder.AtEnd() || head.Encode() != bytes) return Damaged();
  return head;
}

absl::StatusOr<std::vector<std::string>> EncodePrefillNote(PrefillNoteHead head,
                                                           absl::Span<const std::byte> pages,
                                                           const std::function<bool()>& go_on) {
  if (pages.size() != head.pages() * kPageSize) {
    return absl::InvalidArgumentError("the pages of a working set are not those that its places tell");
  }
  ChunkCompressor compressor;
  std::vector<std::string> parts(1);
  head.chunks.clear();
  for (size_t at = 0; at < pages.size(); at += kNoteChunkBytes) {
    if (!go_on()) return absl::CancelledError("the pages of a working set are not kept now");
    parts.push_back(compressor.Compress(pages.subspan(at, kNoteChunkBytes), &head.chunks.emplace_back()));
  }
  parts[0] = head.Encode();
  if (parts[0].size() > kMostHeadBytes) {
    return absl::ResourceExhaustedError("a working set is in too many places to be kept in one");
  }
  return parts;
}

absl::Status LoadPrefillNote(const store::NoteReader& note, const PrefillNoteHead& wanted,
                             absl::Span<std::byte> pages) {
  note.WillNeed();
  RK_ASSIGN_OR_RETURN(std::string bytes, ReadHead(note));
  RK_ASSIGN_OR_RETURN(PrefillNoteHead head, PrefillNoteHead::Decode(bytes));
  if (head.image != wanted.image || head.working_set != wanted.working_set ||
      head.recorded != wanted.recorded || head.written != wanted.written ||
      pages.size() != head.pages() * kPageSize) {
    return absl::FailedPreconditionError("the pages kept are those of another working set");
  }
  std::vector<uint64_t> offsets;
  uint64_t offset = bytes.size();
  for (const Chunk& chunk : head.chunks) {
    offsets.push_back(offset);
    offset += chunk.stored_bytes;
  }
  if (offset != note.bytes()) return Damaged();
  const size_t threads =
      std::min({std::max<size_t>(1, std::thread::hardware_concurrency()), kMostThreads, head.chunks.size()});
  std::vector<absl::Status> results(threads);
  std::atomic<size_t> next{0};
  InParallel(threads, [&](size_t thread) {
    ChunkLoader loader(note);
    for (size_t i; results[thread].ok() && (i = next.fetch_add(1)) < head.chunks.size();) {
      results[thread] = loader.Load(head.chunks[i], offsets[i],
                                    pages.subspan(i * kNoteChunkBytes, PlainBytes(head.pages(), i)));
    }
  });
  for (const absl::Status& result : results) RK_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace rekindle::restore
