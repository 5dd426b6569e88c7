export const handler = async () => 'mjs';
