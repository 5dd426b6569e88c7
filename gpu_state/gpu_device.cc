#include "gpu_state/gpu_device.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace rekindle::gpu {

std::string FormatUuid(const cuda::Uuid& uuid) {
  std::string hex =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(uuid.bytes), sizeof uuid.bytes));
  absl::string_view h = hex;
  return absl::StrCat("GPU-", h.substr(0, 8), "-", h.substr(8, 4), "-", h.substr(12, 4), "-", h.substr(16, 4),
                      "-", h.substr(20));
}

absl::StatusOr<cuda::Uuid> ParseUuid(absl::string_view text) {
  absl::string_view digits = text;
  absl::ConsumePrefix(&digits, "GPU-");
  const std::string hex = absl::StrReplaceAll(digits, {{"-", ""}});
  cuda::Uuid uuid = {};
  bool valid = hex.size() == 2 * sizeof uuid.bytes;
  for (char c : hex) valid &= absl::ascii_isxdigit(static_cast<unsigned char>(c));
  if (!valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no GPU's UUID: `nvidia-smi -L` lists them (GPU-8a6c2f1e-…)"));
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  bytes.copy(reinterpret_cast<char*>(uuid.bytes), sizeof uuid.bytes);
  return uuid;
}

}  // namespace rekindle::gpu
