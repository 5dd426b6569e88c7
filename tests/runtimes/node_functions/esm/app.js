import { basename } from 'node:path';

const prefix = await Promise.resolve('module');

export const handler = async () => `${prefix} ${basename(import.meta.url)}`;
