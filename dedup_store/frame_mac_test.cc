#include "dedup_store/frame_mac.h"

#include <openssl/evp.h>

#include <cstring>
#include <string>

#include "dedup_store/store_testing.h"
#include "gtest/gtest.h"

namespace rekindle::store {
namespace {

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The same by OpenSSL's interface for everybody.
Hash128 Gmac(const StoreSeed& seed, const std::string& data) {
  Sha256 sha;
  sha.Update(seed.data(), seed.size());
  sha.Update("\6", 1);
  const auto key = sha.Finish();
  const unsigned char vector[12] = {};
  Hash128 tag;
  int length = 0;
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  EXPECT_EQ(EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, key.data(), vector), 1);
  EXPECT_EQ(EVP_EncryptUpdate(context, nullptr, &length, reinterpret_cast<const unsigned char*>(data.data()),
                              static_cast<int>(data.size())),
            1);
  unsigned char nothing[16];
  EXPECT_EQ(EVP_EncryptFinal_ex(context, nothing, &length), 1);
  EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, sizeof tag, &tag), 1);
  EVP_CIPHER_CTX_free(context);
  return tag;
}

TEST(FrameMac, IsGmacUnderTheStoresKey) {
  const StoreSeed seed = {1, 2, 3};
  FrameMac mac(seed);
  for (size_t pages : {1, 3, 64}) {
    std::string data = MakePages(pages, pages);
    EXPECT_EQ(mac.Of(Bytes(data)), Gmac(seed, data)) << pages;
    const Hash128 before = mac.Of(Bytes(data));
    EXPECT_EQ(mac.Of(Bytes(data)), before);
    data.back() ^= 1;
    EXPECT_FALSE(mac.Of(Bytes(data)) == before);
  }
  EXPECT_FALSE(FrameMac(StoreSeed{1, 2, 4}).Of(Bytes("x")) == mac.Of(Bytes("x"))) << "another store's key";
}

}  // namespace
}  // namespace rekindle::store
